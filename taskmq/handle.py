"""A published task in its publisher's hands: look at it, wait for its result, cancel it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, TypeVar, cast

from taskmq.durations import TEN_YEARS, Duration, seconds
from taskmq.errors import ResultTimeout, TaskFailed, TaskNotFound
from taskmq.names import check_id
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import Store

R = TypeVar("R")

FIRST_PAUSE = 0.010
LONGEST_PAUSE = 0.250
_GROWTH = 1.5
WATCH = 5.0
"""Most seconds in one watch: a driver that blocks in C sees an interrupt at its end, if not earlier."""


class Handle(Generic[R]):
    """One published task.

    ``id``         32 lower-case hex digits
    ``queue``      where it was published
    ``duplicate``  the idempotency key had been published before: this is that first task

    Every method may raise TaskNotFound (the record's retention is over) and TransportError.
    """

    __slots__ = ("_decode", "_store", "duplicate", "id", "queue")

    def __init__(
        self, store: Store, task_id: str, queue: str, *, duplicate: bool, decode: Callable[[Any], Any] | None = None
    ) -> None:
        self._store = store
        self._decode = decode
        self.id = task_id
        self.queue = queue
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"<Handle of task {self.id} in queue {self.queue}>"

    def info(self) -> TaskInfo:
        """The task as it stands now."""
        return find_task(self._store, self.id)

    def state(self) -> TaskState:
        """Where the task is in its life now."""
        return self.info().state

    def cancel(self) -> TaskState:
        """Cancel the task: at once if it waits; if it runs, its handler is asked to stop. Returns its state now."""
        state = self._store.cancel([self.id])[0]
        if state is None:
            _not_found(self.id)
        return state

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the task has ended and return what its handler returned; the store wakes it, where it can.

        ``timeout``: seconds, ``"5m"`` or timedelta; None waits as long as it takes. The result has the type of the
        handler's return annotation if this app knows the handler, else it is plain JSON data.

        Raises TaskFailed if the task ended FAILED, CANCELLED or EXPIRED, and ResultTimeout if the time is over; then
        the task goes on.
        """
        end = _end(timeout)
        while not (info := self.info()).state.terminal:
            left = end - time.monotonic()
            if left <= 0:
                raise self._timed_out(timeout)
            self._store.watch(self.id, min(left, WATCH))  # whatever it says: it may be woken early, so look again
        return self._result(info)

    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109  # the twin of result(timeout)
        """``result`` for coroutines; between its looks, every 10 ms at first and 250 ms later, it holds no thread.

        It looks rather than watches, because a watch blocks a thread: a thousand waiting coroutines would need a
        thousand of them.
        """
        import asyncio  # not at the top: it would cost every import of taskmq 35 ms

        pauses = _pauses(_end(timeout))
        while not (info := await asyncio.to_thread(self.info)).state.terminal:
            pause = next(pauses, None)
            if pause is None:
                raise self._timed_out(timeout)
            await asyncio.sleep(pause)
        return self._result(info)

    def _timed_out(self, timeout: Duration | None) -> ResultTimeout:
        return ResultTimeout(f"task {self.id} has not ended within {timeout} (a number is seconds); it goes on")

    def _result(self, info: TaskInfo) -> R:
        if info.state is not TaskState.SUCCEEDED:
            why = ": ".join(text for text in (info.reason, info.error) if text)
            raise TaskFailed(
                f"task {info.id} ({info.handler}) ended {info.state}" + (f": {why}" if why else ""),
                task_id=info.id,
                state=info.state,
                reason=info.reason,
                error=info.error,
            )
        if info.result is None or self._decode is None:
            return cast(R, info.result)
        return cast(R, self._decode(info.result))


def find_task(store: Store, task_id: str) -> TaskInfo:
    """The task of this id; raises TaskNotFound, InvalidArgument for what is no id."""
    info = store.get([check_id(task_id)])[0]
    if info is None:
        _not_found(task_id)
    return info


def _not_found(task_id: str) -> NoReturn:
    raise TaskNotFound(f"there is no task {task_id}: it was never published, or the retention of its record is over")


def _end(timeout: Duration | None) -> float:
    """When the waiting ends, by the monotonic clock; raises InvalidArgument for what is no duration."""
    return math.inf if timeout is None else time.monotonic() + seconds("timeout", timeout, 0.0, TEN_YEARS)


def _pauses(end: float) -> Iterator[float]:
    """Seconds to wait before each further look, growing; it ends when the time is over."""
    pause = FIRST_PAUSE
    while (left := end - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * _GROWTH, LONGEST_PAUSE)
