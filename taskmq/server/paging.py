"""Cursors: opaque, signed, bound to a caller's environment and filters, good for a day."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import msgspec

from taskmq.server.errors import invalid

GOOD_FOR = 24 * 3600
"""Seconds."""
DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
_SIGNATURE = 16


class _Content(msgspec.Struct, array_like=True):
    bound: str
    after: str
    issued: int


class Cursors:
    """Makes and reads cursors. ``key`` is shared by the servers of one database."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, after: str, environment: str, filters: Mapping[str, Any], now: float) -> str:
        """A cursor that goes on behind ``after``."""
        content = msgspec.msgpack.encode(_Content(_bound(environment, filters), after, int(now)))
        return base64.urlsafe_b64encode(self._sign(content) + content).rstrip(b"=").decode()

    def read(self, cursor: str, environment: str, filters: Mapping[str, Any], now: float) -> str:
        """Behind what it goes on; raises ApiError for all but a cursor of this environment and these filters."""
        try:
            data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            signature, content = data[:_SIGNATURE], data[_SIGNATURE:]
            if not hmac.compare_digest(signature, self._sign(content)):
                raise ValueError
            decoded = msgspec.msgpack.decode(content, type=_Content)
        except (ValueError, binascii.Error, msgspec.DecodeError):
            raise invalid("the cursor is not one of this server's", "query.cursor") from None
        if decoded.bound != _bound(environment, filters):
            raise invalid("the cursor belongs to a list with other filters", "query.cursor")
        if now - decoded.issued > GOOD_FOR:
            raise invalid("the cursor is older than a day", "query.cursor")
        return decoded.after

    def _sign(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")[:_SIGNATURE]


def _bound(environment: str, filters: Mapping[str, Any]) -> str:
    text = msgspec.json.encode([environment, sorted(filters.items())])
    return hashlib.blake2b(text, digest_size=9).hexdigest()
