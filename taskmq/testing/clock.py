"""A clock that stands still until a test turns it."""

from __future__ import annotations


class FakeClock:
    """Microseconds since the epoch, moved by hand."""

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self._now = now

    def now(self) -> int:
        """The time it was set to."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Turn it forward."""
        self._now += round(seconds * 1e6)
