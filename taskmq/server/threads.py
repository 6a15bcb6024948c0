"""Blocking work on threads, awaited on the loop.

What ``concurrent.futures`` and ``asyncio.wrap_future`` do for this takes two futures, a condition and three callbacks a
call. A node makes a few thousand calls a second, each of which does little more than a statement, so this is one queue
and one callback; it halves the price of a call.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.TimerHandle]


class Threads:
    """Up to ``size`` daemon threads, started as they are needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._started = 0
        self._idle = threading.Semaphore(0)
        self._closed = False

    def run(self, work: Callable[[], T], seconds: float) -> asyncio.Future[T]:
        """A future of the running loop for what ``work`` returns or raises; TimeoutError after so many seconds.

        Work that has begun goes on when its time is over or the future is cancelled. Raises RuntimeError when closed.
        """
        if self._closed:
            raise RuntimeError("the node has stopped")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        timer = loop.call_later(seconds, _time_out, future)
        if self._started < self._size and not self._idle.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._jobs.put((work, future, timer))
        return future

    def close(self) -> None:
        """Take no more work; threads end with what they do."""
        self._closed = True
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            work, future, timer = job
            result, error = None, None
            if not future.cancelled():
                try:
                    result = work()
                except BaseException as raised:
                    error = raised
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, timer, result, error)
            except RuntimeError:  # the loop has ended
                return
            del job, work, future, timer, result, error
            self._idle.release()


def _time_out(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _settle(future: asyncio.Future[Any], timer: asyncio.TimerHandle, result: Any, error: BaseException | None) -> None:
    timer.cancel()
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
