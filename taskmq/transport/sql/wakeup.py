"""How an idle worker of a server's store sleeps: until a bell rings, a due time has come, or it is time to look again.

Bells are rung by this process's own commits and, where the server passes notices on, by those of others. A bell only
says that it is worth looking: whether something can be claimed is asked of the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from taskmq.transport.sql.fragments import NEVER

FOUND = -1
"""What a look answers when there is something."""
FIRST_WATCH, LAST_WATCH = 0.010, 0.250
"""Seconds between looks at a task that somebody waits for (defaults.md): at first, and at most."""


class _Sleeper:
    """One waiter's bell. ``queues`` None: it hears every bell."""

    def __init__(self, queues: Collection[str] | None) -> None:
        self.queues = queues
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it has been rung already
            self._bell.release()

    def sleep(self, timeout: float) -> None:
        self._bell.acquire(timeout=max(0.0, timeout))


class Bells:
    """The waiters of this process."""

    def __init__(self) -> None:
        self._sleepers: set[_Sleeper] = set()
        self._wakes = 0

    def ring(self, queues: Iterable[str] | None = None) -> None:
        """Wake whoever waits for one of these queues, or for a task's end; None: everybody."""
        wanted = None if queues is None else set(queues)
        for sleeper in tuple(self._sleepers):
            if wanted is None or sleeper.queues is None or not wanted.isdisjoint(sleeper.queues):
                sleeper.ring()

    def wake(self) -> None:
        """Make every wait return."""
        self._wakes += 1
        self.ring()

    def wait(
        self,
        look: Callable[[], int],
        queues: Collection[str],
        timeout: float,
        now: Callable[[], int],
        pause: Callable[[], float],
    ) -> bool:
        """Look at once, at each bell, when the time has come that the last look gave, and after each ``pause``.

        ``look`` answers FOUND, or when something falls due, or NEVER. False: the time is over, or ``wake`` was called.
        """

        def seconds(due: int) -> float:
            return pause() if due == NEVER else min(pause(), (due - now()) / 1e6)

        return self._until(look, queues, timeout, seconds)

    def watch(self, look: Callable[[], bool], timeout: float) -> bool:
        """Look at once, and then less and less often, until there is something."""
        step = FIRST_WATCH / 2

        def seconds(_: int) -> float:
            nonlocal step
            step = min(LAST_WATCH, 2 * step)
            return step

        return self._until(lambda: FOUND if look() else NEVER, None, timeout, seconds)

    def _until(
        self,
        look: Callable[[], int],
        queues: Collection[str] | None,
        timeout: float,
        seconds: Callable[[int], float],
    ) -> bool:
        end = time.monotonic() + timeout
        wakes = self._wakes
        sleeper = _Sleeper(queues)
        self._sleepers.add(sleeper)  # before the first look, so that no bell is missed
        try:
            while True:
                due = look()
                if due == FOUND:
                    return True
                left = end - time.monotonic()
                if self._wakes != wakes or left <= 0:
                    return False
                sleeper.sleep(min(left, seconds(due)))
        finally:
            self._sleepers.discard(sleeper)
