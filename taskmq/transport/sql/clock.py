"""The server's clock, without asking it each time.

The store's clock decides (model.md §9), so that workers' clocks may be wrong by minutes. To ask the server would be an
exchange more for each verb; instead its time is asked every few seconds, and in between this machine's monotonic clock,
which nobody sets, counts on from there. The answer is taken to be from the middle of the exchange, so processes agree
to within half of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 5.0
"""Seconds between two questions; a clock that is set on the server is followed after that."""


class ServerClock:
    """``ask`` returns the server's time in microseconds."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._offset = 0
        self._asked = float("-inf")

    def now(self) -> int:
        """Microseconds since the epoch, by the server. Asks it when the last answer is old; may raise its errors."""
        if time.monotonic() - self._asked > EVERY:
            before = time.monotonic_ns()
            answer = self._ask()
            self._offset = answer - (before + time.monotonic_ns()) // 2000
            self._asked = time.monotonic()
        return time.monotonic_ns() // 1000 + self._offset
