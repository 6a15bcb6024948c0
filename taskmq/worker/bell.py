"""A bell: what one thread of the worker waits for and any other rings. A ring that comes early is not lost."""

from __future__ import annotations

from threading import Lock


class Bell:
    """A binary semaphore: however often it is rung before somebody waits, it ends one wait.

    A raw lock and no Event or Condition: those take two locks and an object for each wait, and nobody here has more
    than one thread waiting.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the wait, or the next one. From any thread."""
        try:
            self._lock.release()
        except RuntimeError:  # it rings already
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it rings; False when the time (seconds) is over."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


__all__ = ["Bell"]
