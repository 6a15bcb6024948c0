"""How an idle worker learns of work in a SQLite file.

SQLite has no notification. In this process a publish rings a bell, which costs nothing. For other processes the waiter
looks at ``PRAGMA data_version``, which changes with every commit of another connection and is a read of shared memory
(3 µs); only when it has changed is it worth asking whether a task can be claimed, and only a yes ends the wait.
Workers' own settles change the version, too, so without that question idle workers would wake each other.

When to look? Every few milliseconds, for ever, costs little each time, but a thread that wakes 140 times a second was
measured at 1.2 to 2.1 % of a core. Linux can tell when a file is written (inotify), and a commit writes the WAL first.
So the waiter sleeps until the WAL has been written, and then looks, a few milliseconds apart, until it is quiet again.
Not once only: the kernel's word comes *before* the commit can be seen, which waits for the disk in between. And it does
not sleep for ever without that word: some file systems pass none on. Should a commit show up that nobody told of, it is
not trusted any more, and the waiter looks every few milliseconds, as it does where there is no inotify.
"""

from __future__ import annotations

import os
import select
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from taskmq.transport.sql.fragments import NEVER, UNFINISHED, claimable
from taskmq.transport.sql.sqlite.words import NEXT_DUE, WORDS

POLL = 0.007
"""Seconds between two looks while the file is being written, or where nobody tells. Half of it is the median delay."""
FIRST_POLL = 0.0005
"""The first look after the file was written; then twice as long each time, up to POLL. While writes follow one another,
they are not listened to for as long, from this up to POLL, too: a busy file is looked at every POLL and not more."""
QUIET = 0.05
"""Seconds after the last write until there is nothing more to be seen of it."""
UNTOLD = 0.1
"""Seconds between two looks at a file that is quiet, in case nobody tells."""
BELIEVED = 10.0
"""Seconds after a word of the kernel in which a commit that shows up is taken for the one it spoke of: a slow disk."""

_IN_MODIFY = 0x2
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

Reader = Callable[[], AbstractContextManager[sqlite3.Connection]]

CLAIMABLE = WORDS.text(claimable(WORDS.counts))
UNFINISHED_TASK = WORDS.text(UNFINISHED)
FOUND = -1.0


class Sleeper(Protocol):
    """How one waiter sleeps."""

    def ring(self) -> None:
        """End its sleep, or the next one; from any thread."""
        ...

    def sleep(self, timeout: float, *, deaf: bool = False) -> tuple[bool, bool]:
        """Sleep so many seconds at most; whether it was rung, and whether the file was written.

        ``deaf``: being written does not end the sleep.
        """
        ...


class Deaf:
    """Sleeps until it is rung; nobody tells it of the file."""

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it has been rung already
            self._bell.release()

    def sleep(self, timeout: float, *, deaf: bool = False) -> tuple[bool, bool]:
        return self._bell.acquire(timeout=timeout), False


class Told:
    """Sleeps until it is rung or the kernel says that the file was written. Raises OSError where it would not."""

    def __init__(self, path: str) -> None:
        import ctypes  # here, where somebody waits

        self._bell = self._notices = -1
        self._told_at = float("-inf")
        self.inode = Path(path).stat().st_ino
        libc = ctypes.CDLL(None, use_errno=True)
        self._notices = libc.inotify_init1(_FLAGS)
        if self._notices < 0 or libc.inotify_add_watch(self._notices, os.fsencode(path), _IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), "no inotify")
        self._bell = os.eventfd(0, _FLAGS)
        self._ears = select.poll()
        self._ears.register(self._bell, select.POLLIN)
        self._deaf = select.poll()
        self._deaf.register(self._bell, select.POLLIN)
        self._ears.register(self._notices, select.POLLIN)

    def __del__(self) -> None:
        for descriptor in (self._bell, self._notices):
            if descriptor >= 0:
                os.close(descriptor)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it rings louder than it can count
            os.eventfd_write(self._bell, 1)

    def sleep(self, timeout: float, *, deaf: bool = False) -> tuple[bool, bool]:
        (self._deaf if deaf else self._ears).poll(timeout * 1000)
        rung = written = True
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            rung = False
        try:
            os.read(self._notices, 65536)
            self._told_at = time.monotonic()
        except BlockingIOError:
            written = False
        return rung, written

    def knew(self) -> bool:
        """Whether it may have been told of a commit that has just shown up."""
        return self.sleep(0.0)[1] or time.monotonic() - self._told_at < BELIEVED


class Wakeup:
    """Blocks until something can be claimed."""

    def __init__(self) -> None:
        self._sleepers: set[Sleeper] = set()
        """Those that wait now."""
        self._spare: list[Told] = []
        """Those that have waited, with what the kernel keeps for them."""
        self._trusted = sys.platform == "linux"
        self._wakes = 0

    def signal(self) -> None:
        """Say that this process has changed something that may make work claimable."""
        for sleeper in tuple(self._sleepers):
            sleeper.ring()

    def wake(self) -> None:
        """Make every wait return."""
        self._wakes += 1
        self.signal()

    def wait(
        self,
        reader: Reader,
        gate: AbstractContextManager[None],
        namespace: str,
        queues: Sequence[str],
        timeout: float,
        now: Callable[[], int],
    ) -> bool:
        """True as soon as something can be claimed, False when the time is over or ``wake`` was called."""
        parameters = {"namespace": namespace, "names": msgspec.json.encode(list(queues)).decode()}

        def look(connection: sqlite3.Connection) -> float:
            if connection.execute(CLAIMABLE, {**parameters, "now": now()}).fetchone():
                return FOUND
            due: int = connection.execute(NEXT_DUE, {**parameters, "now": now()}).fetchone()[0]
            return due

        return self._until(look, reader, gate, timeout, now)

    def watch(
        self, reader: Reader, gate: AbstractContextManager[None], namespace: str, task_id: str, timeout: float
    ) -> bool:
        """True as soon as the task has ended or is gone, False when the time is over or ``wake`` was called."""

        def look(connection: sqlite3.Connection) -> float:
            return (
                NEVER
                if connection.execute(UNFINISHED_TASK, {"id": task_id, "namespace": namespace}).fetchone()
                else FOUND
            )

        return self._until(look, reader, gate, timeout, lambda: 0)

    def _until(
        self,
        look: Callable[[sqlite3.Connection], float],
        reader: Reader,
        gate: AbstractContextManager[None],
        timeout: float,
        now: Callable[[], int],
    ) -> bool:
        """Look until it is FOUND: at first, after every commit, and when the time has come that the last look gave.

        ``gate`` is entered for each look, and not while it sleeps.
        """
        end = time.monotonic() + timeout
        wakes = self._wakes
        with reader() as connection:
            sleeper = self._sleeper(connection)
            self._sleepers.add(sleeper)  # before the first look, so that no signal is missed
            try:
                version, rung, due = -1, True, 0.0
                step, loud_until, pace = FIRST_POLL, 0.0, 0.0
                while True:
                    with gate:
                        seen = _data_version(connection)
                        if rung or seen != version or now() >= due:
                            version, due = seen, look(connection)
                            if due == FOUND:
                                return True
                    moment = time.monotonic()
                    if self._wakes != wakes or moment >= end:
                        return False
                    if not isinstance(sleeper, Told):
                        rung, _ = sleeper.sleep(min(POLL, end - moment))
                    elif moment < loud_until:
                        rung, written = sleeper.sleep(min(pace, end - moment), deaf=True)
                        if not (rung or written):
                            rung, written = sleeper.sleep(min(step, end - moment))
                        if written:
                            step, loud_until = FIRST_POLL, moment + QUIET
                            pace = min(POLL, 2 * pace or FIRST_POLL)
                        else:
                            step = min(POLL, 2 * step)
                            pace = 0.0 if step == POLL else pace
                    else:
                        rung, written = sleeper.sleep(min(UNTOLD, end - moment))
                        if written:
                            step, loud_until = FIRST_POLL, time.monotonic() + QUIET
                        elif not rung and _data_version(connection) != version and not sleeper.knew():
                            self._trusted = False
                            sleeper = self._exchange(sleeper)
            finally:
                self._sleepers.discard(sleeper)
                if isinstance(sleeper, Told) and self._trusted:
                    self._spare.append(sleeper)

    def _sleeper(self, connection: sqlite3.Connection) -> Sleeper:
        """One that is told of the WAL this connection uses, if that can be."""
        if not self._trusted:
            return Deaf()
        path = connection.execute("PRAGMA database_list").fetchone()[2] + "-wal"
        try:
            inode = Path(path).stat().st_ino
            while self._spare:
                spare = self._spare.pop()
                if spare.inode == inode:
                    spare.sleep(0.0)  # what was said to it meanwhile is old
                    return spare
            return Told(path)
        except (OSError, AttributeError, IndexError):  # no WAL, no inotify, too many watches
            return Deaf()

    def _exchange(self, sleeper: Sleeper) -> Sleeper:
        """From here on nobody is told."""
        deaf = Deaf()
        self._sleepers.add(deaf)
        self._sleepers.discard(sleeper)
        return deaf


def _data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
