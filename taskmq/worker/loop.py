"""The event loop that ``async def`` handlers run on: one thread of the worker, started when the first one needs it.

uvloop's, where uvloop is installed.
"""

from __future__ import annotations

import logging
from threading import Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

log = logging.getLogger("taskmq.worker")


class LoopThread:
    """Called, it answers the running loop."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._stopping = False

    def __call__(self) -> AbstractEventLoop:
        """The loop, running. From any thread."""
        return self._loop or self._start()

    def _start(self) -> AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = _new_loop()
                self._thread = Thread(target=self._run, args=(loop,), name="taskmq-loop", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def _run(self, loop: AbstractEventLoop) -> None:
        """Run until ``stop``, although a handler stops its loop or raises an exit in a task of its own."""
        while not self._stopping:
            try:
                loop.run_forever()
            except BaseException as error:  # SystemExit and KeyboardInterrupt get out of any loop
                log.error("%s got out of a task on the worker's event loop; it runs on", type(error).__name__)
            else:
                if not self._stopping:
                    log.error("a handler stopped the worker's event loop; it runs again")

    def stop(self, timeout: float) -> None:
        """Cancel what still is on the loop, stop it, and close it if it stops in time; if it was ever started."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return

        def begin() -> None:
            self._ending = loop.create_task(_wind_up(loop, timeout / 2))

        self._stopping = True
        loop.call_soon_threadsafe(begin)
        thread.join(timeout)
        if not thread.is_alive():
            loop.close()


async def _wind_up(loop: AbstractEventLoop, patience: float) -> None:
    """What ``asyncio.run`` does at its end, but not for ever."""
    import asyncio

    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    try:
        if rest:
            await asyncio.wait(rest, timeout=patience)
        await loop.shutdown_asyncgens()
    finally:
        loop.stop()


def _new_loop() -> AbstractEventLoop:
    import asyncio  # not at the top: 35 ms that a worker without async handlers need not pay

    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return asyncio.new_event_loop()
    loop: AbstractEventLoop = uvloop.new_event_loop()
    return loop


__all__ = ["LoopThread"]
