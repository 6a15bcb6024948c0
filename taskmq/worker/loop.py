"""The event loop that ``async def`` handlers run on: one thread of the worker, started when the first one needs it."""

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
        import asyncio  # not at the top: 35 ms that a worker without async handlers need not pay

        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._run, args=(loop,), name="taskmq-loop", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def _run(self, loop: AbstractEventLoop) -> None:
        """Run until ``stop``: a handler that stops the loop it runs on must not stop all others."""
        while not self._stopping:
            loop.run_forever()
            if not self._stopping:
                log.error("a handler stopped the worker's event loop; it runs again")

    def stop(self, timeout: float) -> None:
        """Stop the loop, if it was started, and close it if it stops in time."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._stopping = True
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout)
        if not thread.is_alive():
            loop.close()


__all__ = ["LoopThread"]
