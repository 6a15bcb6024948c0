"""What a handler raises to say how its task goes on. These are answers, not errors: no attempt has failed.

They are kept apart from the error tree, so that ``except TaskMQError`` in a handler never catches one. An
``except Exception`` does: raise them outside of it.
"""

from __future__ import annotations

from taskmq.durations import TEN_YEARS, Duration, microseconds
from taskmq.errors import InvalidArgument


class Signal(Exception):
    """Root of the three signals."""


class RetryLater(Signal):
    """Run this task again after ``delay``; consumes an attempt.

    ``delay``      seconds, ``"5m"`` or timedelta, at most ten years
    ``partition``  block the task's parallel partition as a whole until then (an ordered one always is)

    Raises InvalidArgument for a delay that is not a duration.
    """

    def __init__(self, delay: Duration, partition: bool = False) -> None:
        super().__init__(delay)
        self.delay = microseconds("RetryLater delay", delay, 0.0, TEN_YEARS)
        self.partition = partition


class Defer(Signal):
    """Run this task later, after ``delay``; consumes no attempt.

    ``delay``      seconds, ``"5m"`` or timedelta, at most ten years
    ``partition``  block the task's parallel partition as a whole until then (an ordered one always is)

    Raises InvalidArgument for a delay that is not a duration.
    """

    def __init__(self, delay: Duration, partition: bool = False) -> None:
        super().__init__(delay)
        self.delay = microseconds("Defer delay", delay, 0.0, TEN_YEARS)
        self.partition = partition


class Dead(Signal):
    """Give this task up: it goes to the dead letters with ``reason``, whatever attempts are left.

    Raises InvalidArgument for a reason that is not text or is empty.
    """

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str) or not reason:
            raise InvalidArgument(f"the reason of Dead must be text that says why, not {reason!r}")
        super().__init__(reason)
        self.reason = reason
