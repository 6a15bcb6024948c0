"""A worker process that is replaced whenever the code changes.

The worker is a process of its own, because nothing short of a new interpreter forgets old code for sure. It is in a
session of its own, because Ctrl-C goes to all of a terminal's processes: the worker would take it together with the
signal that it gets from here for a first and a second one, and would not let its tasks end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from threading import Event
from types import FrameType

import click

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
STUBBORN = 15.0
"""Seconds beyond its grace after which a worker that was told to stop is killed; it should not need half of that."""

Changes = Callable[[Event], Iterable[list[str]]]
"""Given what ends it: the names of what has changed, and empty lists in between, as moments to look at the worker.

The first list comes when it watches.
"""


class Reloader:
    """Runs ``taskmq`` with these words, again and again. ``grace``: seconds that it needs to stop."""

    def __init__(self, words: Sequence[str], grace: float) -> None:
        self._patience = grace + STUBBORN
        self._words = [sys.executable, "-m", "taskmq", *words]
        self._worker: subprocess.Popen[bytes] | None = None
        self._stop = Event()

    def run(self, changes: Changes) -> None:
        """Start the worker, start it anew after each change, and end it at a signal."""
        before = {number: signal.signal(number, self._signalled) for number in SIGNALS}
        try:
            watching = iter(changes(self._stop))
            next(watching, None)  # watch before the worker reads the code, or a change in between would be missed
            self._start()
            for changed in watching:
                if self._stop.is_set():
                    break
                if changed:
                    _say(f"changed: {', '.join(changed)}; starting anew")
                    self._end()
                    self._start()
                else:
                    self._look()
            self._end(told=self._stop.is_set())
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _start(self) -> None:
        if not self._stop.is_set():
            self._worker = subprocess.Popen(self._words, start_new_session=True)  # noqa: S603  # our own command

    def _look(self) -> None:
        """Say once that the worker has ended by itself."""
        if self._worker is not None and self._worker.poll() is not None:
            _say(f"the worker has ended with exit code {self._worker.returncode}; waiting for the next change")
            self._worker = None

    def _end(self, told: bool = False) -> None:
        """Let the worker end: tell it to, unless it has been told, and wait."""
        if self._worker is None:
            return
        if not told:
            self._worker.terminate()
        try:
            self._worker.wait(self._patience)
        except subprocess.TimeoutExpired:
            _say("the worker does not end; killing it")
            self._kill()

    def _kill(self) -> None:
        if self._worker is not None and self._worker.poll() is None:
            self._worker.kill()
            self._worker.wait()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Hand each signal on: the first one lets tasks end, the second one does not."""
        self._stop.set()
        if self._worker is not None:
            self._worker.terminate()


def _say(text: str) -> None:
    click.echo(f"taskmq dev: {text}", err=True)


__all__ = ["Changes", "Reloader"]
