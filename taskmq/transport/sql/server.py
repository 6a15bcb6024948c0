"""What the engines of database servers share: pools, transactions, and what is done when they fail.

A transaction that met others – a deadlock, a serialization failure where somebody forces that level, the same task
sent twice at a time – is run again, a few times with a growing pause. So is one whose connection had died before: the
server was restarted, a session was ended. Once COMMIT may have reached the server, a lost connection means that nobody
knows (OutcomeUnknown), and nothing is run again here: a publish is made safe by its tasks' ids (transport.py), and a
worker's claims and settlements by leases and epochs.
"""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from taskmq.clock import Clock
from taskmq.errors import OutcomeUnknown, TaskMQError, TransportError
from taskmq.transport.base import Capabilities
from taskmq.transport.sql.clock import ServerClock
from taskmq.transport.sql.codes import SHARED_BATCH
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.fragments import UNFINISHED, claimable
from taskmq.transport.sql.pool import Closable, Pool
from taskmq.transport.sql.queries import Queries
from taskmq.transport.sql.schema import check_version
from taskmq.transport.sql.wakeup import FOUND, Bells
from taskmq.transport.sql.words import Words

T = TypeVar("T")
C = TypeVar("C", bound=Closable)

TRIES = 8
"""How often a transaction is run that meets others."""
PAUSE = 0.002
"""Seconds before the second try, at random up to twice as many; doubled each time."""
READERS = 4


class Transaction(Session, Protocol):
    """A session with its end."""

    committing: bool
    """Whether COMMIT may have reached the server."""

    def commit(self) -> None:
        """Commit."""
        ...


class ServerEngine(ABC, Generic[C]):
    """A database: connections that write, one for what keeps leases alive, some that read.

    ``where``     the server, for messages
    ``size``      connections that write · ``patience`` seconds to wait for one
    """

    name: str
    capabilities = Capabilities(durable=True, shared=True)
    batch: ClassVar[int] = SHARED_BATCH
    short: ClassVar[bool] = False
    words: ClassVar[Words]
    next_due: ClassVar[str]
    error: type[Exception]
    """The root of the driver's errors."""

    def __init__(self, where: str, namespace: str, size: int, patience: float) -> None:
        self.namespace = namespace
        self.clock: Clock = ServerClock(self._server_time)
        self._where = where
        self._size = size
        self._patience = patience
        self._closed = False
        self._claimable = self.words.text(claimable(self.words.counts))
        self._unfinished = self.words.text(UNFINISHED)
        self._open_pools()
        try:
            version = self._schema_version()
            check_version(where, version, "which is older: run taskmq migrate up")
        except BaseException:
            self.close()
            raise

    # ── what a driver brings ──

    @abstractmethod
    def _connect(self) -> C:
        """A new connection; raises the errors of taskmq."""

    @abstractmethod
    def _transaction(self, connection: C) -> Transaction:
        """A transaction on it, which begins with its first statement."""

    @abstractmethod
    def _rows(self, connection: C, statement: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        """All rows of a statement outside of a transaction."""

    @abstractmethod
    def _usable(self, connection: C) -> bool:
        """Whether it is open and in no transaction."""

    @abstractmethod
    def _undo(self, connection: C) -> None:
        """Back to a clean connection, or close it."""

    @abstractmethod
    def _lost(self, error: Exception) -> bool:
        """Whether it was the connection that ended."""

    @abstractmethod
    def _may_run_again(self, error: Exception) -> bool:
        """Whether the transaction was undone by others' doing."""

    @abstractmethod
    def _translate(self, error: Exception) -> TaskMQError:
        """The error of taskmq that says what a driver's means."""

    @abstractmethod
    def _schema_version(self) -> int:
        """Which schema the database has."""

    @abstractmethod
    def _server_time(self) -> int:
        """The server's clock."""

    @abstractmethod
    def _pause(self) -> float:
        """Seconds between an idle worker's looks."""

    def _open_ears(self) -> None:
        """Begin to hear of other processes' news."""

    # ── connections ──

    def _open_pools(self) -> None:
        self._pid = os.getpid()
        self._writers = Pool(self._connect, self._usable, self._size, self._patience)
        self._vital = Pool(self._connect, self._usable, 1, self._patience)
        self._readers = Pool(self._connect, self._usable, READERS, self._patience)
        self._bells = Bells()

    def _pools(self) -> tuple[Pool[C], ...]:
        return self._writers, self._vital, self._readers

    def _check(self) -> None:
        if self._closed:
            raise TransportError("this store is closed")
        if self._pid != os.getpid():  # a connection must not cross a fork: start afresh in the child
            for pool in self._pools():
                pool.leave_to_parent()
            self._open_pools()
            self._open_ears()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except self.error as error:
            raise self._translate(error) from error

    @contextmanager
    def _reader(self) -> Iterator[C]:
        with self._readers.connection() as connection, self._mapped():
            try:
                yield connection
            except self.error:
                self._undo(connection)
                raise

    # ── work ──

    def write(self, work: Callable[[Session], T], *, vital: bool = False) -> T:
        """Run ``work`` in a transaction; returns when it is committed."""
        self._check()
        pool = self._vital if vital else self._writers
        end = time.monotonic() + self._patience
        for attempt in range(TRIES):
            try:
                return self._attempt(pool, work)
            except _AgainError as again:
                if attempt == TRIES - 1 or time.monotonic() > end:
                    raise self._translate(again.error) from again.error
            time.sleep(PAUSE * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    def _attempt(self, pool: Pool[C], work: Callable[[Session], T]) -> T:
        with pool.connection() as connection:
            session = self._transaction(connection)
            try:
                result = work(session)
                session.commit()
            except self.error as error:
                gone = self._lost(error)
                self._undo(connection)
                if gone:
                    self._discard()
                    if session.committing:
                        raise OutcomeUnknown(
                            f"{self._where}: the connection was lost during COMMIT; it may or may not have taken effect"
                        ) from error
                    raise _AgainError(error) from error
                if self._may_run_again(error):
                    raise _AgainError(error) from error
                raise self._translate(error) from error
            except BaseException:
                self._undo(connection)
                raise
            return result

    def _discard(self) -> None:
        """The server was away: what is idle is dead as well."""
        for pool in self._pools():
            pool.clear()

    def read(self, work: Callable[[Queries], T]) -> T:
        """Run ``work`` on what is committed."""
        self._check()
        try:
            return self._read(work)
        except _AgainError:
            self._discard()
            try:
                return self._read(work)
            except _AgainError as again:
                raise self._translate(again.error) from again.error

    def _read(self, work: Callable[[Queries], T]) -> T:
        with self._readers.connection() as connection:

            def ask(text: str, values: dict[str, Any]) -> Sequence[Sequence[Any]]:
                return self._rows(connection, text, values)

            try:
                return work(Queries(ask, self.words, self.namespace))
            except self.error as error:
                gone = self._lost(error)
                self._undo(connection)
                raise (_AgainError(error) if gone else self._translate(error)) from error

    # ── waking ──

    def signal(self, queues: Iterable[str] | None = None) -> None:
        """Wake this process's waiters."""
        self._bells.ring(queues)

    def wait(self, queues: Sequence[str], timeout: float, now: Callable[[], int]) -> bool:
        """Block until something can be claimed."""
        names = list(queues)

        def look() -> int:
            self._check()
            parameters = {"namespace": self.namespace, "names": self.words.pack(names), "now": now()}
            with self._reader() as connection:
                if self._rows(connection, self._claimable, parameters):
                    return FOUND
                return int(self._rows(connection, self.next_due, parameters)[0][0])

        return self._bells.wait(look, names, timeout, now, self._pause)

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task has ended or is gone."""
        parameters = {"id": task_id, "namespace": self.namespace}

        def ended() -> bool:
            self._check()
            with self._reader() as connection:
                return not self._rows(connection, self._unfinished, parameters)

        return self._bells.watch(ended, timeout)

    def wake(self) -> None:
        """Make every wait return."""
        self._bells.wake()

    def close(self) -> None:
        """Close every connection."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        if self._pid == os.getpid():
            self._close_ears()
            for pool in self._pools():
                pool.close()

    def _close_ears(self) -> None:
        """Hear no more."""


class _AgainError(Exception):
    """The transaction was undone and may be run again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
