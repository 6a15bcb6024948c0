"""The worker's threads, supervised: none may die in silence and leave a worker that is half alive."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

from taskmq.worker.failure import trace

log = logging.getLogger("taskmq.worker")


class Services:
    """Starts daemon threads.

    The first unexpected exception in one of them is kept as ``failure``, logged with its traceback, and reported by
    ``on_failure`` (called on the thread that failed).
    """

    def __init__(self, worker: str, on_failure: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self._worker = worker
        self._on_failure = on_failure

    def start(self, name: str, target: Callable[[], None]) -> Thread:
        """Run ``target`` in a thread of its own."""
        # A daemon, always: neither a handler that never returns nor a store that hangs may keep a process alive.
        thread = Thread(target=self._guard, args=(name, target), name=f"taskmq-{name}", daemon=True)
        thread.start()
        return thread

    def _guard(self, name: str, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # whatever it is, the thread is gone
            self.failed(name, error)

    def failed(self, name: str, error: BaseException) -> None:
        """Note that a thread has died of this error."""
        if self.failure is None:
            self.failure = error
        self._on_failure()  # before the log: describing the error may fail, too
        log.critical("worker %s: its thread %r died; the worker stops\n%s", self._worker, name, trace(error))


__all__ = ["Services"]
