"""One coroutine handler on the event loop itself: its first step at once, the rest as part of an asyncio task.

Most handlers of a queue are short, and many never wait. An asyncio task for each of them, made, scheduled and called
back, costs more than such a handler. So the *runner* of the pool, which is an asyncio task itself, takes the first
step of a coroutine. If it ends there, the runner goes on with the next job; if it waits for something, the runner
becomes the task of this one coroutine and ends with it, and the pool starts another runner. Why that is sound:

* ``asyncio.current_task()`` is a real task from the first step on, and the same one until the end. So
  ``asyncio.timeout``, TaskGroup, and libraries that keep things by task work; only coroutines that never wait share
  a task with others, one after another.
* Each coroutine has a copied context of its own for all its steps: what it sets in a ContextVar nobody else sees. A
  task cannot change its own context, but whoever drives a coroutine by hand can run each step in any.
* Nothing is left over: a task that has been cancelled, or told to cancel, ends with its coroutine and is never used
  again. A coroutine that cancels its own task and returns without waiting is found out by ``cancelling()``.

Rejected: driving the first step outside of any task and making one when it waits (``current_task()`` is None or another
one at first, and ``asyncio.timeout`` around the first await would cancel the wrong one); long-lived tasks, one a place
(as fast, but everything kept by task leaks from one job into the next).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from time import monotonic
from typing import Any

from taskmq.context import enter
from taskmq.outcome import Outcome
from taskmq.worker.executor import Execution, Executor
from taskmq.worker.failure import interrupted, timed_out


class Drive:
    """Drives the coroutine of one attempt to its outcome. On the loop's thread, except ``cancel``."""

    __slots__ = (
        "_attempt",
        "_bound",
        "_cancelled",
        "_context",
        "_coroutine",
        "_executor",
        "_expired",
        "_future",
        "_loop",
        "_task",
    )

    def __init__(self, executor: Executor, attempt: Execution, loop: asyncio.AbstractEventLoop) -> None:
        self._executor = executor
        self._attempt = attempt
        self._loop = loop
        self._bound = executor.timeout_of(attempt)
        self._context = copy_context()
        self._expired = False
        self._cancelled = False
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> Outcome | None:
        """Take the first step; the outcome if that was all. Otherwise ``rest`` is to be awaited."""
        attempt = self._attempt
        self._executor.begin(attempt)
        attempt.coroutine = self
        try:
            if attempt.context.cancelled:  # it was asked to stop before there was a coroutine to cancel
                raise asyncio.CancelledError
            self._coroutine = self._context.run(self._call)
            self._future = self._context.run(self._coroutine.send, None)
        except StopIteration as stop:
            return self._returned(stop.value)
        except BaseException as error:
            return self._raised(error)
        return None

    async def rest(self, since: float) -> Outcome:
        """What comes after the first wait, in the running task, which is the coroutine's own from now on.

        ``since``: when it was started (monotonic); its timeout counts from there.
        """
        self._task = asyncio.current_task()
        timer = None
        if self._bound is not None:
            timer = self._loop.call_later(max(0.0, self._bound - (monotonic() - since)), self._expire)
        if self._attempt.told:  # a cancel that came during the first step had no task to cancel
            self._cancel()
        value, error = await _Rest(self._context, self._coroutine, self._future)
        self._task = None
        if timer is not None:
            timer.cancel()
        return self._returned(value) if error is None else self._raised(error)

    def cancel(self) -> None:
        """Have the coroutine cancelled at its next wait. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed
            pass

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def _expire(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def _call(self) -> Coroutine[Any, Any, Any]:
        """Call the handler, in its context."""
        attempt = self._attempt
        enter(attempt.context)
        made = attempt.task.function(*attempt.args, **attempt.kwargs)
        return made if isinstance(made, Coroutine) else _awaited(made)

    def _returned(self, value: Any) -> Outcome:
        return self._end(self._executor.returned, value)

    def _raised(self, error: BaseException) -> Outcome:
        if isinstance(error, asyncio.CancelledError):
            if self._expired:
                assert self._bound is not None
                why: Exception = timed_out(self._bound)
            else:
                why = interrupted()
            error = why.with_traceback(error.__traceback__)
        return self._end(self._executor.raised, error)

    def _end(self, classify: Callable[[Execution, Any], Outcome], what: Any) -> Outcome:
        ended = self._context.run(classify, self._attempt, what)
        self._executor.finish(self._attempt, ended)
        return ended


class _Rest:
    """The further steps of a coroutine that has already yielded ``future``, each in its context.

    Awaited, it answers what the coroutine has returned and what it has raised, one of which is None.
    """

    __slots__ = ("_context", "_coroutine", "_future")

    def __init__(self, context: Any, coroutine: Coroutine[Any, Any, Any], future: Any) -> None:
        self._context = context
        self._coroutine = coroutine
        self._future = future

    def __await__(self) -> Generator[Any, Any, Any]:
        run, send, throw, future = self._context.run, self._coroutine.send, self._coroutine.throw, self._future
        while True:
            step, what = send, None
            try:
                what = yield future
            except GeneratorExit:  # the task itself is taken down
                run(self._coroutine.close)
                raise
            except BaseException as error:
                step, what = throw, error.with_traceback(None)  # our frames say nothing to the handler
            try:
                future = run(step, what)
            except StopIteration as stop:
                return stop.value, None
            except BaseException as error:  # a value: an exit that leaves a task would end the loop
                return None, error


async def _awaited(what: Any) -> Any:
    return await what


__all__ = ["Drive"]
