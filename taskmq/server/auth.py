"""From a header to an identity: parsed, looked up, remembered for less than revocation may take; and request rates."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from taskmq.clock import SystemClock
from taskmq.server.errors import ApiError
from taskmq.server.permissions import Identity
from taskmq.wire.credentials import TOKEN

REMEMBERED = 1.5
"""Seconds for which an identity is believed without a look: revocation acts within five."""
MOST_REMEMBERED = 4096


def unauthenticated() -> ApiError:
    """401, the same for every reason."""
    return ApiError("UNAUTHENTICATED", "a valid token is needed", headers={"WWW-Authenticate": "Bearer"})


@dataclass(slots=True)
class _Known:
    identity: Identity
    looked_up: float
    bucket: Bucket


class Bucket:
    """A token bucket on the monotonic clock: ``rate`` a second, ``burst`` at once."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = 0.0

    def take(self, now: float) -> float:
        """0.0 if one was taken, else the seconds until there is one."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level >= 1:
            self._level -= 1
            return 0.0
        return (1 - self._level) / self._rate


class Tokens:
    """Who the tokens of requests stand for. ``look_up(token_id, secret)`` asks the database."""

    def __init__(self, look_up: Callable[[str, str], Awaitable[Identity | None]], rate: float, burst: int) -> None:
        self._look_up = look_up
        self._rate = rate
        self._burst = burst
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def of_header(self, header: str | None) -> tuple[str, Identity]:
        """The token of an Authorization header and who it is; raises UNAUTHENTICATED."""
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            raise unauthenticated()
        token = token.strip(" ")
        return token, await self.identify(token)

    async def identify(self, token: str) -> Identity:
        """Who a token stands for; raises UNAUTHENTICATED."""
        match = TOKEN.match(token)
        if match is None:
            raise unauthenticated()
        known = self._known.get(token)
        if known is None or time.monotonic() - known.looked_up > REMEMBERED:
            identity = await self._look_up(match[1], match[2])
            if identity is None:
                self._known.pop(token, None)
                raise unauthenticated()
            bucket = known.bucket if known is not None else Bucket(self._rate, self._burst)
            known = self._known[token] = _Known(identity, time.monotonic(), bucket)
            self._known.move_to_end(token)
            if len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        if known.identity.expires_at is not None and known.identity.expires_at <= SystemClock().now():
            raise unauthenticated()
        return known.identity

    def spend(self, token: str) -> None:
        """Count a request; raises RATE_LIMITED."""
        known = self._known.get(token)
        wait = 0.0 if known is None else known.bucket.take(time.monotonic())
        if wait:
            details = {"limit": "token.request_rate", "max": int(self._rate)}
            raise ApiError("RATE_LIMITED", "too many requests of this token", details=details, retry_after=wait)
