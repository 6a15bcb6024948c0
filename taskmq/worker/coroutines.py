"""``async def`` handlers: they run on the worker's event loop while their handler thread waits for them.

The thread waits, so a coroutine occupies a place of the pool like any other task, and what holds for the others
(leases, prefetch, shutdown) holds for it. Unlike a function in a thread, it can be stopped: by its timeout and by a
cancel, both by ``CancelledError`` at its next ``await``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from taskmq.worker.failure import interrupted, timed_out


class CoroutineRun:
    """One coroutine handler on the loop, from the thread that waits for it."""

    __slots__ = ("_cancelled", "_loop", "_task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def result(self, call: Callable[[], Awaitable[Any]], bound: float | None) -> Any:
        """Run it to its end and return what it returns, or raise what it raises; ``bound``: seconds, or None.

        Context variables of the calling thread are those of the coroutine.
        """
        value, error = asyncio.run_coroutine_threadsafe(self._guarded(call, bound), self._loop).result()
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # or this frame and the error's traceback keep each other, and all they hold, alive

    def cancel(self) -> None:
        """Cancel it, from any thread; before it has begun, it does not begin."""
        self._cancelled = True
        if self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _guarded(self, call: Callable[[], Awaitable[Any]], bound: float | None) -> tuple[Any, Any]:
        # The error is a value here: a SystemExit that leaves an asyncio task would end the loop and all the others.
        self._task = asyncio.current_task()
        try:
            if self._cancelled:
                raise asyncio.CancelledError
            return await _within(bound, call), None
        except asyncio.CancelledError as error:
            return None, interrupted().with_traceback(error.__traceback__)
        except BaseException as error:
            return None, error


async def _within(bound: float | None, call: Callable[[], Awaitable[Any]]) -> Any:
    scope = asyncio.timeout(bound)
    try:
        async with scope:
            return await call()
    except TimeoutError as error:
        if bound is not None and scope.expired():
            raise timed_out(bound) from error
        raise
