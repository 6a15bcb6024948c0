"""SIGTERM, SIGINT and SIGHUP (a closed terminal): the first one drains, the second one ends now.

Python runs signal handlers in the main thread, between two bytecodes. A main thread that blocks in a lock is
interrupted to run them – unless the signal comes in the moment between its last look and its falling asleep: then it
sleeps on, and the signal is lost until something else wakes it. So the main thread sleeps on a pipe, into which the
interpreter itself writes a byte when a signal arrives (``signal.set_wakeup_fd``): a byte waits, however early it came.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


class SignalWaiter:
    """While inside, calls ``first`` at the first of the signals and ``again`` at every later one.

    ``wait`` sleeps until a signal comes or another thread calls ``ring``. Entered outside the main thread it leaves
    signals alone, since Python allows nothing else.
    """

    def __init__(self, first: Callable[[], None], again: Callable[[], None]) -> None:
        self._first = first
        self._again = again
        self._seen = 0
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> SignalWaiter:
        self._pipe = read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)  # as set_wakeup_fd demands; a full pipe wakes as well as a fuller one would
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None: it was not installed from Python, and cannot be put back from here
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        with self._lock:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)

    def wait(self, timeout: float | None = None) -> None:
        """Sleep until a signal, a ring, or the end of the timeout (in seconds)."""
        assert self._pipe is not None
        read = self._pipe[0]
        select.select([read], [], [], timeout)
        with suppress(BlockingIOError):
            os.read(read, 4096)

    def ring(self) -> None:
        """Wake the one that waits. From any thread, also when nobody waits any more."""
        with self._lock, suppress(BlockingIOError):
            if self._pipe is not None:
                os.write(self._pipe[1], b"\0")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen += 1
        (self._first if self._seen == 1 else self._again)()


__all__ = ["SIGNALS", "SignalWaiter"]
