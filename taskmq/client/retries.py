"""What a client does when a request fails: whether to send it again, and when. Pure but for the random number."""

from __future__ import annotations

import random
import time
from typing import Any

from taskmq.client.calls import Call
from taskmq.client.errors import Problem
from taskmq.errors import TaskMQError

_AGAIN = (429, 502, 503, 504)


class Attempts:
    """The tries of one call, all within ``timeout`` seconds."""

    def __init__(self, call: Call[Any], timeout: float, most: int) -> None:
        self._call = call
        self._left = most
        self._made = 0
        self.end = time.monotonic() + timeout + call.extra

    def remaining(self) -> float:
        """Seconds left for a try."""
        return max(0.001, self.end - time.monotonic())

    def pause(self, error: TaskMQError, status: int, sent: bool) -> float | None:
        """Seconds to wait before the next try, or None: raise the error.

        ``status`` 0: no answer; ``sent``: the request may have reached the server.
        """
        if self._left <= 0 or (status and status not in _AGAIN):
            return None
        if not self._call.again and (sent or status) and status != 429:
            return None
        after = error.retry_after if isinstance(error, Problem) else None
        pause = after if after is not None else random.uniform(0, min(5.0, 0.2 * 2**self._made))
        if time.monotonic() + pause >= self.end:
            return None
        self._left -= 1
        self._made += 1
        return pause
