"""How an idle worker learns of work: BLPOP on a list for each queue, to which whatever makes work eligible pushes.

A token wakes one waiter, where pub/sub would wake them all for each task (measured: 16 empty reserves a task, and half
the speed). The lists are capped, so a queue without waiters keeps a few old tokens; therefore a token only says "look",
and a waiter that finds nothing goes on waiting. It also looks when something falls due, and every second in any case: a
token may be lost with the worker that took it.

``wake`` pushes to a list of this object's own, once for each wait that is under way. A wait signs in before it looks at
the count of wakes, so no wake falls into the gap before it blocks.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from taskmq.errors import OutcomeUnknown, TransportUnavailable
from taskmq.transport.redis.keys import WAKE
from taskmq.transport.redis.runner import Runner

LONGEST = 1.0
"""Seconds after which a waiter looks by itself."""

Look = Callable[[], tuple[bool, float | None]]
"""Whether there is work, and in how many seconds something falls due."""


class Wakeup:
    """The waits of one store object."""

    def __init__(self, runner: Runner, prefix: str) -> None:
        self._runner = runner
        cluster = runner.settings.cluster
        self._start = (f"{prefix}{{{WAKE}}}:" if cluster else f"{prefix}wake:").encode()
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._wakes = 0
        self._waiting = 0
        self._own = self._start + b"*" + uuid.uuid4().hex.encode()

    def list_of(self, queue: str) -> bytes:
        """The list that wakes those who wait for work of a queue."""
        return self._start + queue.encode()

    def wait(self, queues: Sequence[str], timeout: float, look: Look) -> bool:
        """Block until ``look`` finds work (True), the time is over, or somebody wakes it (False)."""
        if self._pid != os.getpid():
            self._start_anew()
        deadline = time.monotonic() + timeout
        lists = [self._own, *map(self.list_of, queues)]
        with self._mutex:
            wakes = self._wakes
            self._waiting += 1
        try:
            while True:
                work, due = look()
                if work:
                    return True
                left = min(deadline - time.monotonic(), LONGEST if due is None else min(LONGEST, max(0.001, due)))
                if self._wakes != wakes or deadline <= time.monotonic() or self._runner.closed:
                    return False
                self._runner.block(("BLPOP", *lists, f"{max(0.001, left):.3f}"))  # 0.000 would be for ever
                if self._wakes != wakes or self._runner.closed:
                    return False
        finally:
            with self._mutex:
                self._waiting -= 1

    def wake(self) -> None:
        """Make every blocked wait return."""
        if self._pid != os.getpid():
            self._start_anew()
        with self._mutex:
            self._wakes += 1
            waiting = self._waiting
        if waiting:
            try:
                self._runner.commands([("RPUSH", self._own, *["1"] * waiting), ("PEXPIRE", self._own, 2000)])
            except (OutcomeUnknown, TransportUnavailable):
                pass  # then their connections are gone, too
