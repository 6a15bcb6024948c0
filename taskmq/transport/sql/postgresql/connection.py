"""The PostgreSQL engine: its connections, and how its processes hear of one another. The rest is in ``server``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import psycopg
from psycopg.types.numeric import Int8Dumper

from taskmq.clock import Clock
from taskmq.errors import TaskMQError
from taskmq.transport.base import Finding
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.foreign import driver_connection, no_transaction
from taskmq.transport.sql.postgresql import hot
from taskmq.transport.sql.postgresql.errors import lost, map_errors, may_run_again, refused, translate
from taskmq.transport.sql.postgresql.exchange import Exchanger, Line, Sent
from taskmq.transport.sql.postgresql.guest import GuestSession, within
from taskmq.transport.sql.postgresql.listener import Herald, Listener, channel
from taskmq.transport.sql.postgresql.session import PgSession
from taskmq.transport.sql.postgresql.settings import PLANS, Settings
from taskmq.transport.sql.postgresql.words import NEXT_DUE, WORDS
from taskmq.transport.sql.server import ServerEngine
from taskmq.transport.sql.transport import SqlTransport
from taskmq.transport.sql.words import Words

T = TypeVar("T")
K = TypeVar("K", bound=psycopg.Connection[Any])

LISTENED, POLLED = 1.0, 0.05
"""Seconds between an idle worker's looks: while the server passes notices on, and where it does not."""
VERSION = """
SELECT max(version), (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid=c.relnamespace
  WHERE c.oid=to_regclass('taskmq_schema')) FROM taskmq_schema
"""
SESSION = {
    "idle_in_transaction_session_timeout": "30s",  # a process that was stopped must not hold its queues for ever
    "lock_timeout": "30s",
}
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_IDLE = psycopg.pq.TransactionStatus.IDLE


class PgEngine(ServerEngine[Line]):
    """A PostgreSQL database, with a listener beside the other connections."""

    name = "postgresql"
    short: ClassVar[bool] = True
    words: ClassVar[Words] = WORDS
    next_due: ClassVar[str] = NEXT_DUE
    error: type[Exception] = psycopg.Error

    def __init__(self, settings: Settings, namespace: str) -> None:
        self.settings = settings
        self._schema = ""
        self._begin = [BEGIN]
        if not settings.prepared:
            values = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in {**PLANS, **SESSION}.items())
            self._begin.append(f"SELECT {values}")
        self._herald: Herald | None = None
        self._listener: Listener | None = None
        super().__init__(settings.where, namespace, settings.pool, settings.patience)
        self._open_ears()

    # ── the driver ──

    def _connect(self) -> Line:
        options = {**PLANS, **SESSION} if self.settings.prepared else {}
        connection = plain_connection(self.settings, Line, options)
        connection.adapters.register_dumper(int, Int8Dumper)  # one type for all numbers: one plan a statement
        if self.settings.prepared:
            connection.prepare_threshold = 0
        connection.exchanger = Exchanger(connection, self.settings.prepared)
        return connection

    def _transaction(self, connection: Line) -> PgSession:
        return PgSession(connection, self.namespace, self._begin)

    def _rows(self, connection: Line, statement: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        sent = Sent(statement, parameters)
        connection.exchanger.run([sent])
        return sent.rows

    def _usable(self, connection: Line) -> bool:
        return not connection.closed and connection.info.transaction_status == _IDLE

    def _undo(self, connection: Line) -> None:
        try:
            if connection.info.transaction_status != _IDLE:
                connection.exchanger.run([Sent("ROLLBACK", ())])  # psycopg's own forgets all that was prepared
        except psycopg.Error:
            connection.close()

    def _lost(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and lost(error)

    def _may_run_again(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and may_run_again(error)

    def _translate(self, error: Exception) -> TaskMQError:
        assert isinstance(error, psycopg.Error)
        return translate(error)

    def _schema_version(self) -> int:
        with self._reader() as connection:
            version, self._schema = connection.execute(VERSION).fetchone() or (0, "")
        return version or 0

    def _server_time(self) -> int:
        with self._reader() as connection:
            return int(self._rows(connection, hot.NOW, {})[0][0])

    # ── news ──

    def _open_ears(self) -> None:
        name = channel(self._schema, self.namespace)
        self._listener = Listener(self._connect, name, self._bells) if self.settings.listen else None
        self._herald = Herald(self._notify, name, self._listener) if self.settings.listen else None

    def _close_ears(self) -> None:
        if self._herald is not None:
            self._herald.close()
        if self._listener is not None:
            self._listener.close()

    def _notify(self, name: str, payload: str) -> None:
        with self._vital.connection() as connection:
            connection.exchanger.run([Sent("SELECT pg_notify(%s, %s)", (name, payload))])

    def _pause(self) -> float:
        return LISTENED if self._listener is not None and self._listener.hears else POLLED

    def signal(self, queues: Iterable[str] | None = None) -> None:
        """Wake this process's waiters now and others' soon."""
        names = None if queues is None else list(queues)
        super().signal(names)
        if self._herald is not None and names == []:
            self._herald.tell_ended()
        elif self._herald is not None:
            self._herald.tell(names)

    def wait(self, queues: Sequence[str], timeout: float, now: Callable[[], int]) -> bool:
        """Block until something can be claimed."""
        self._check()
        if self._listener is not None:
            self._listener.start()
        return super().wait(queues, timeout, now)

    # ── the rest ──

    def within(self, connection: object, queues: Sequence[str], work: Callable[[Session], T]) -> T:
        """Run ``work`` in a user's transaction. The notice is part of it: the server sends it when it commits."""
        self._check()
        user = driver_connection(connection, psycopg.Connection, "a psycopg.Connection")
        if user.autocommit and user.info.transaction_status == _IDLE:
            raise no_transaction("use connection.transaction()")
        with map_errors(), within(user, self._schema, self.settings.where) as cursor:
            session = GuestSession(cursor, self.namespace)
            result = work(session)
            if self._herald is not None:
                session.tell(*self._herald.notice(queues))
            session.send()
        return result

    def checkup(self) -> list[Finding]:
        """What is wrong with the database and its settings."""
        from taskmq.transport.sql.postgresql.checkup import checkup  # for operators only: no worker pays for it

        with self._reader() as connection:
            return checkup(connection, self.settings, self.namespace)


def plain_connection(settings: Settings, kind: type[K], options: Mapping[str, str] | None = None) -> K:
    """A connection in autocommit as the URL describes it, with these settings of its session."""
    parameters: dict[str, Any] = dict(settings.parameters)
    parameters.setdefault("application_name", "taskmq")
    parameters.setdefault("connect_timeout", 10)
    parameters["client_encoding"] = "UTF8"
    if options:
        more = " ".join(f"-c {name}={value}" for name, value in options.items())
        parameters["options"] = f"{parameters.get('options', '')} {more}".strip()
    try:
        connection = kind.connect(**parameters, autocommit=True)
    except psycopg.Error as error:
        raise refused(error, settings.where) from error
    if not settings.prepared:
        connection.prepare_threshold = None
    return connection


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether a pooler is in between: the server's session is not the one that was opened."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != connection.info.backend_pid


def open_url(url: str, *, namespace: str = "default", clock: Clock | None = None) -> SqlTransport:
    """The store of a ``postgresql://`` URL."""
    return SqlTransport(PgEngine(Settings(url), namespace), clock)
