"""One writer a process, many callers a commit. Essay: group commit and the turnstile.

SQLite lets one connection write at a time, and with ``synchronous=FULL`` each commit waits for the disk. Callers that
come together therefore share a transaction (``transport/group.py``). Each caller's statements stand in a SAVEPOINT of
their own: an error undoes them and is raised there only; a failed COMMIT is raised to all of the group.

Between processes SQLite's own waiting – sleep longer after every miss – is grossly unfair: waits of seconds beside a
busy writer. So writers pass a *turnstile*, a file lock that is held while trying to begin and given back as soon as
the transaction has begun. A writer that has just finished and wants to go again finds the turnstile in the hands of
whoever waits for the database, so it cannot barge. It is polled with a deadline rather than awaited: a process that
was stopped in the middle of a transaction must turn into a clear error here, not into a hang.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from taskmq.errors import TransportError, TransportUnavailable
from taskmq.transport.group import Call, Group
from taskmq.transport.sql.sqlite.errors import map_errors
from taskmq.transport.sql.sqlite.forks import ForkGate

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform: SQLite's own locks remain
    fcntl = None  # type: ignore[assignment]

PAUSE = (0.0001, 0.0004)
"""Seconds between two tries to get a turn, at random within."""

T = TypeVar("T")
Work = Callable[[], Any]


class Writer:
    """Runs callers' work in shared transactions on one connection."""

    def __init__(self, connection: sqlite3.Connection, turnstile: Turnstile, gate: ForkGate) -> None:
        self._connection = connection
        self._gate = gate
        self._turnstile = turnstile
        self.group: Group[Work, Any] = Group(self._commit)

    def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` inside a transaction and return its result once it is committed; raises what it raised."""
        return self.group.call(work)  # type: ignore[no-any-return]

    def _commit(self, group: Sequence[Call[Work, Any]]) -> None:
        """One transaction for all of the group."""
        with map_errors(), self._gate:
            try:
                self._turnstile.begin(self._connection)
                alone = len(group) == 1
                results = [group[0].wish()] if alone else [self._in_savepoint(call) for call in group]
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        for call, result in zip(group, results, strict=True):
            call.answer(result)

    def _in_savepoint(self, call: Call[Work, Any]) -> Any:
        """Its result; an error is the call's own."""
        run = self._connection.execute
        run("SAVEPOINT caller")
        result = None
        try:
            with map_errors():
                result = call.wish()
        except Exception as error:
            call.error = error
            if not self._connection.in_transaction:
                raise  # the engine gave up the whole transaction (disk full, I/O error): nobody's work stands
            run("ROLLBACK TO caller")
        run("RELEASE caller")
        return result


class Turnstile:
    """Fair turns between the processes that write to one file. ``patience``: seconds to wait for a turn."""

    def __init__(self, path: str | None, patience: float) -> None:
        self._patience = patience
        self._path = path
        self._file: int | None = None
        if path is not None and fcntl is not None:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise TransportError(f"cannot open the lock file {path}: {error.strerror}") from error

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a writing transaction when it is this process's turn.

        Raises TransportUnavailable when its patience is over, sqlite3.Error for anything but a busy database.
        """
        end = time.monotonic() + self._patience
        self._enter(end)
        try:
            while not _begun(connection):
                if time.monotonic() > end:
                    raise TransportUnavailable(
                        f"the database has been locked by another program for {self._patience:g} s; "
                        "is one stopped or hanging? Nothing was stored, try again"
                    )
                time.sleep(random.uniform(*PAUSE))
        finally:
            self._leave()

    def _enter(self, end: float) -> None:
        if self._file is None:
            return
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > end:
                    raise TransportUnavailable(
                        f"other processes have been waiting to write to the database for {self._patience:g} s; "
                        f"is one stopped or hanging? (lock file {self._path})"
                    ) from None
            time.sleep(random.uniform(*PAUSE))

    def _leave(self) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give up the lock file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _begun(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return False
        raise
    return True
