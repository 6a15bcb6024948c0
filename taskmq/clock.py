"""Time comes in through a Clock, so that tests can say what time it is.

Wall time is integer microseconds since the epoch (model.md §9). Durations inside a process are measured with
``time.monotonic`` where they are used; they never decide what the store does.
"""

from __future__ import annotations

import time
from typing import Protocol

SECOND = 1_000_000
"""One second in the unit of all stored times and durations: microseconds."""


class Clock(Protocol):
    """Where "now" comes from."""

    def now(self) -> int:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> int:
        return time.time_ns() // 1000
