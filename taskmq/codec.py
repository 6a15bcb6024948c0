"""The wire form of a task: one JSON document, the Envelope, which stores carry without looking inside.

JSON, because other languages, ``task show`` and a database's own shell can read it; never pickle. Arguments and
results are encoded by msgspec: datetime, UUID, Decimal, bytes and dataclasses become text or objects, and come back
as what the handler's annotations say.
"""

from __future__ import annotations

import msgspec

from taskmq.errors import InvalidArgument

EMPTY_ARGS = msgspec.Raw(b"[]")
EMPTY_KWARGS = msgspec.Raw(b"{}")


class RetryWire(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of a retry policy that was given at the enqueue. Durations in seconds."""

    backoff: str = "exponential"
    base: float = 1.0
    cap: float = 300.0
    jitter: bool = True


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a handler is called with. Fields that are not known here are dropped, so newer writers are understood."""

    args: msgspec.Raw = EMPTY_ARGS
    kwargs: msgspec.Raw = EMPTY_KWARGS
    timeout: int | None = None
    """Microseconds for one attempt."""
    retry: RetryWire | None = None
    headers: dict[str, str] = {}
    tags: list[str] = []


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """The envelope as UTF-8 JSON."""
    return _encoder.encode(envelope)


def decode(body: bytes | str) -> Envelope:
    """The envelope of a stored body; raises InvalidArgument when the body is not one."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the stored task is damaged: {error}") from error
