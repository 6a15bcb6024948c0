"""The PostgreSQL engine: connections, transactions, and what is done when they fail.

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.types.numeric import Int8Dumper

from taskmq.clock import Clock
from taskmq.errors import OutcomeUnknown, TransportError
from taskmq.transport.base import Capabilities, Finding
from taskmq.transport.sql.foreign import driver_connection, no_transaction
from taskmq.transport.sql.fragments import UNFINISHED, claimable
from taskmq.transport.sql.pool import Pool
from taskmq.transport.sql.postgresql import hot
from taskmq.transport.sql.postgresql.clock import ServerClock
from taskmq.transport.sql.postgresql.errors import lost, map_errors, may_run_again, refused, translate
from taskmq.transport.sql.postgresql.guest import GuestSession, within
from taskmq.transport.sql.postgresql.listener import Herald, Listener, channel
from taskmq.transport.sql.postgresql.session import Connection, PgSession
from taskmq.transport.sql.postgresql.settings import PLANS, Settings
from taskmq.transport.sql.postgresql.words import COUNTS, NEXT_DUE, WORDS
from taskmq.transport.sql.queries import Queries
from taskmq.transport.sql.schema import check_version
from taskmq.transport.sql.transport import SqlTransport
from taskmq.transport.sql.wakeup import FOUND, Bells

T = TypeVar("T")

TRIES = 8
"""How often a transaction is run that meets others."""
PAUSE = 0.002
"""Seconds before the second try, at random up to twice as many; doubled each time."""
READERS = 4
LISTENED, POLLED = 1.0, 0.05
"""Seconds between an idle worker's looks: while the server passes notices on, and where it does not."""

CLAIMABLE = WORDS.text(claimable(COUNTS))
UNFINISHED_TASK = WORDS.text(UNFINISHED)
VERSION = """
SELECT max(version), (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid=c.relnamespace
  WHERE c.oid=to_regclass('taskmq_schema')) FROM taskmq_schema
"""
SESSION = {
    "idle_in_transaction_session_timeout": "30s",  # a process that was stopped must not hold its queues for ever
    "lock_timeout": "30s",
}
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"


class PgEngine:
    """A database: connections that write, one for what keeps leases alive, some that read, one that listens."""

    name = "postgresql"
    capabilities = Capabilities(durable=True, shared=True)

    def __init__(self, settings: Settings, namespace: str) -> None:
        self.settings = settings
        self.namespace = namespace
        self.clock: Clock = ServerClock(self._server_time)
        self._closed = False
        self._begin = [BEGIN]
        if not settings.prepared:
            values = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in {**PLANS, **SESSION}.items())
            self._begin.append(f"SELECT {values}")
        self._open_pools()
        self._schema = self._check_schema()
        self._open_ears()

    def _open_pools(self) -> None:
        self._pid = os.getpid()
        settings = self.settings
        self._writers = Pool(self._connect_session, _usable, settings.pool, settings.patience)
        self._vital = Pool(self._connect_session, _usable, 1, settings.patience)
        self._readers = Pool(self._connect_session, _usable, READERS, settings.patience)
        self._bells = Bells()
        self._herald: Herald | None = None
        self._listener: Listener | None = None

    def _open_ears(self) -> None:
        settings = self.settings
        name = channel(self._schema, self.namespace)
        self._listener = Listener(self._connect, name, self._bells) if settings.listen else None
        self._herald = Herald(self._notify, name, self._listener) if settings.listen else None

    # ── connections ──

    def _connect(self, options: str = "") -> Connection:
        parameters: dict[str, Any] = dict(self.settings.parameters)
        parameters.setdefault("application_name", "taskmq")
        parameters.setdefault("connect_timeout", 10)
        if options and self.settings.prepared:
            parameters["options"] = f"{parameters.get('options', '')} {options}".strip()
        try:
            connection = psycopg.connect(**parameters, autocommit=True)
        except psycopg.Error as error:
            raise refused(error, self.settings.where) from error
        connection.adapters.register_dumper(int, Int8Dumper)  # one type for all numbers: one plan a statement
        connection.prepare_threshold = 0 if self.settings.prepared else None
        return connection

    def _connect_session(self) -> Connection:
        return self._connect(" ".join(f"-c {name}={value}" for name, value in {**PLANS, **SESSION}.items()))

    def _check_schema(self) -> str:
        """Where the tables are, if they are those of this version."""
        try:
            with self._readers.connection() as connection, map_errors():
                found = connection.execute(VERSION).fetchone()
            version, place = found or (0, "")
            check_version(self.settings.where, version or 0, "which is older: run taskmq migrate up")
        except BaseException:
            self.close()
            raise
        return str(place)

    def _server_time(self) -> int:
        with self._readers.connection() as connection, map_errors():
            return int(connection.execute(hot.NOW).fetchone()[0])  # type: ignore[index]

    def _check(self) -> None:
        if self._closed:
            raise TransportError("this store is closed")
        if self._pid != os.getpid():  # a connection must not cross a fork: start afresh in the child
            for pool in (self._writers, self._vital, self._readers):
                pool.leave_to_parent()
            self._open_pools()
            self._open_ears()

    # ── work ──

    def write(self, work: Callable[[PgSession], T], *, vital: bool = False) -> T:
        """Run ``work`` in a transaction; returns when it is committed."""
        self._check()
        pool = self._vital if vital else self._writers
        end = time.monotonic() + self.settings.patience
        for attempt in range(TRIES):
            try:
                return self._attempt(pool, work)
            except _AgainError as again:
                if attempt == TRIES - 1 or time.monotonic() > end:
                    raise translate(again.error) from again.error
            time.sleep(PAUSE * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    def _attempt(self, pool: Pool[Connection], work: Callable[[PgSession], T]) -> T:
        with pool.connection() as connection:
            session = PgSession(connection, self.namespace, self._begin)
            try:
                result = work(session)
                session.commit()
            except psycopg.Error as error:
                gone = lost(error) or connection.closed
                self._undo(connection)
                if gone:
                    self._discard()
                    if session.committing:
                        raise OutcomeUnknown(
                            f"{self.settings.where}: the connection was lost during COMMIT; it may or may not have "
                            "taken effect"
                        ) from error
                    raise _AgainError(error) from error
                if may_run_again(error):
                    raise _AgainError(error) from error
                raise translate(error) from error
            except BaseException:
                self._undo(connection)
                raise
            return result

    def within(self, connection: object, queues: Sequence[str], work: Callable[[PgSession], T]) -> T:
        """Run ``work`` in a user's transaction. The notice is part of it: the server sends it when it commits."""
        self._check()
        user = driver_connection(connection, psycopg.Connection, "a psycopg.Connection")
        if user.autocommit and user.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise no_transaction("use connection.transaction()")
        with map_errors(), within(user, self._schema, self.settings.where) as cursor:
            session = GuestSession(cursor, self.namespace)
            result = work(session)
            if self._herald is not None:
                session.tell(*self._herald.notice(queues))
            session.send()
        return result

    def _undo(self, connection: Connection) -> None:
        """Back to a clean connection, or to none."""
        try:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()

    def _discard(self) -> None:
        """The server was away: what is idle is dead as well."""
        for pool in (self._writers, self._vital, self._readers):
            pool.clear()

    def read(self, work: Callable[[Queries], T]) -> T:
        """Run ``work`` on what is committed."""
        self._check()
        for last in (False, True):
            with self._readers.connection() as connection:

                def ask(text: str, values: dict[str, Any], connection: Connection = connection) -> list[Any]:
                    return connection.execute(text, values).fetchall()

                try:
                    return work(Queries(ask, WORDS, self.namespace))
                except psycopg.Error as error:
                    if last or not (lost(error) or connection.closed):
                        raise translate(error) from error
                    connection.close()
            self._discard()
        raise AssertionError("unreachable")

    # ── waking ──

    def signal(self, queues: Iterable[str] | None = None) -> None:
        """Wake this process's waiters now and others' soon."""
        names = None if queues is None else list(queues)
        self._bells.ring(names)
        if self._herald is not None:
            self._herald.tell(names)

    def _notify(self, name: str, payload: str) -> None:
        with self._vital.connection() as connection:
            connection.execute("SELECT pg_notify(%s, %s)", (name, payload))

    def wait(self, queues: Sequence[str], timeout: float, now: Callable[[], int]) -> bool:
        """Block until something can be claimed."""
        self._check()
        if self._listener is not None:
            self._listener.start()
        names = list(queues)

        def look(connection: Connection) -> int:
            parameters = {"namespace": self.namespace, "names": names, "now": now()}
            if connection.execute(CLAIMABLE, parameters).fetchone():
                return FOUND
            return int(connection.execute(NEXT_DUE, parameters).fetchone()[0])  # type: ignore[index]

        return self._bells.wait(lambda: self._look(look), names, timeout, now, self._pause)

    def _pause(self) -> float:
        return LISTENED if self._listener is not None and self._listener.hears else POLLED

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task has ended or is gone."""
        self._check()
        parameters = {"id": task_id, "namespace": self.namespace}

        def ended(connection: Connection) -> bool:
            return connection.execute(UNFINISHED_TASK, parameters).fetchone() is None

        return self._bells.watch(lambda: self._look(ended), timeout)

    def _look(self, look: Callable[[Connection], T]) -> T:
        self._check()
        with self._readers.connection() as connection, map_errors():
            return look(connection)

    def wake(self) -> None:
        """Make every wait return."""
        self._bells.wake()

    def checkup(self) -> list[Finding]:
        """What is wrong with the database and its settings."""
        from taskmq.transport.sql.postgresql.checkup import checkup  # for operators only: no worker pays for it

        with self._readers.connection() as connection, map_errors():
            return checkup(connection, self.settings, self.namespace)

    def close(self) -> None:
        """Close every connection."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        if self._pid != os.getpid():
            return
        if self._herald is not None:
            self._herald.close()
        if self._listener is not None:
            self._listener.close()
        for pool in (self._writers, self._vital, self._readers):
            pool.close()


class _AgainError(Exception):
    """The transaction was undone and may be run again."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


def _usable(connection: Connection) -> bool:
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def open_url(url: str, *, namespace: str = "default", clock: Clock | None = None) -> SqlTransport:
    """The store of a ``postgresql://`` URL."""
    return SqlTransport(PgEngine(Settings(url), namespace), clock)
