"""Blocking work on threads, awaited on the loop. Essay: who may hang.

What ``concurrent.futures`` and ``asyncio.wrap_future`` do for this takes two futures, a condition and three callbacks a
call. A node makes a few thousand calls a second, each of which does little more than a statement, so this is one queue
and one callback, which takes a third to a half off the price of a call.

Work of one environment may hang, in a lock that somebody holds on its rows, and a call that has timed out still has its
thread. So nobody gets all of them: at most ``share`` threads are at work for one environment; its other calls wait,
time out in line, and cost nobody a thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle
    owner: str | None


class Threads:
    """Up to ``size`` daemon threads, started as they are needed; ``share`` of them for one owner."""

    def __init__(self, size: int, share: int, name: str) -> None:
        self._size = size
        self._share = share
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._started = 0
        self._idle = threading.Semaphore(0)
        self._at_work: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Job]] = {}
        self._closed = False

    def run(self, owner: str | None, work: Callable[[], T], seconds: float) -> asyncio.Future[T]:
        """A future of the running loop for what ``work`` returns or raises; TimeoutError after so many seconds.

        Work that has begun goes on when its time is over or the future is cancelled. Raises RuntimeError when closed.
        """
        if self._closed:
            raise RuntimeError("the node has stopped")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(work, future, loop.call_later(seconds, _time_out, future), owner)
        if owner is not None and self._at_work[owner] >= self._share:
            self._waiting.setdefault(owner, deque()).append(job)
        else:
            self._put(job)
        return future

    def close(self) -> None:
        """Take no more work; threads end with what they do."""
        self._closed = True
        for _ in range(self._started):
            self._jobs.put(None)

    def _put(self, job: _Job) -> None:
        if job.owner is not None:
            self._at_work[job.owner] += 1
        if self._started < self._size and not self._idle.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            result, error = None, None
            if not job.future.done():
                try:
                    result = job.work()
                except BaseException as raised:
                    error = raised
            try:
                job.future.get_loop().call_soon_threadsafe(self._settle, job, result, error)
            except RuntimeError:  # the loop has ended
                return
            del job, result, error
            self._idle.release()

    def _settle(self, job: _Job, result: Any, error: BaseException | None) -> None:
        job.timer.cancel()
        if job.owner is not None:
            self._next(job.owner)
        if job.future.done():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    def _next(self, owner: str) -> None:
        """One of the owner's calls has ended; another one may begin."""
        self._at_work[owner] -= 1
        if not self._at_work[owner]:
            del self._at_work[owner]
        line = self._waiting.get(owner)
        while line:
            job = line.popleft()
            if not line:
                del self._waiting[owner]
            if not job.future.done():
                if self._closed:
                    job.future.cancel()
                else:
                    self._put(job)
                return


def _time_out(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
