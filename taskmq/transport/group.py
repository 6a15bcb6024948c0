"""Calls that come together are made together. Essay: leader and follower.

Where each call has a price of its own – a commit that waits for the disk, a round trip, a lock – concurrent callers
should pay it once. Whoever finds nobody at work becomes the *leader*: it takes everybody who is waiting, makes one
call for all of them, hands out the answers, and names the first of those who came meanwhile its successor. A lone
caller pays nothing for it, and there is no thread to start, to stop or to lose in a fork; while a call is under way
the next group forms by itself, so groups grow with the load.

Measured for SQLite with 16 callers: a dedicated writer thread is as fast but costs a lone caller a hop (0.12 → 0.14
ms); a plain lock that the releaser can take again makes groups of two.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Call(Generic[T, R]):
    """One caller's wish, and what became of it. The leader sets ``result`` or ``error``."""

    __slots__ = ("done", "error", "result", "wake", "wish")

    def __init__(self, wish: T) -> None:
        self.wish = wish
        self.wake = threading.Lock()
        self.wake.acquire()
        self.done = False
        self.result: R
        self.error: BaseException | None = None


class Group(Generic[T, R]):
    """Makes calls together: ``together`` is given up to ``limit`` calls at a time and answers each of them.

    What ``together`` raises is raised to every caller of that group that has no error of its own.
    """

    def __init__(self, together: Callable[[Sequence[Call[T, R]]], None], limit: int = 64) -> None:
        self._together = together
        self._limit = limit
        self._mutex = threading.Lock()
        self._waiting: deque[Call[T, R]] = deque()
        self._busy = False

    def call(self, wish: T) -> R:
        """Have the wish done, alone or with others, and return its result; raises its error."""
        call: Call[T, R] = Call(wish)
        with self._mutex:
            self._waiting.append(call)
            follows = self._busy
            self._busy = True
        if follows:
            call.wake.acquire()  # until it is done, or this caller's turn to lead
        if not call.done:
            self._lead()
        if call.error is not None:
            raise call.error
        return call.result

    def waiting(self) -> int:
        """How many callers wait for the group that is under way."""
        return len(self._waiting)

    def _lead(self) -> None:
        with self._mutex:
            group = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
        try:
            self._together(group)
        except BaseException as error:
            for call in group:
                call.error = call.error or error
        finally:
            self._pass_on(group)

    def _pass_on(self, group: Sequence[Call[T, R]]) -> None:
        with self._mutex:
            heir = self._waiting[0] if self._waiting else None
            self._busy = heir is not None
        for call in group:
            call.done = True
            call.wake.release()
        if heir is not None:
            heir.wake.release()
