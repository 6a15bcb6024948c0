"""Opening a SQLite database: its URL, its pragmas, its schema, its connections."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from taskmq.clock import Clock, SystemClock
from taskmq.errors import ConfigError, InvalidArgument, TransportError
from taskmq.transport.base import Capabilities, Finding
from taskmq.transport.sql.codes import BATCH, SCHEMA_VERSION
from taskmq.transport.sql.foreign import driver_connection, no_transaction
from taskmq.transport.sql.queries import Queries
from taskmq.transport.sql.schema import check_version
from taskmq.transport.sql.sqlite.errors import map_errors, translate
from taskmq.transport.sql.sqlite.forks import ForkGate
from taskmq.transport.sql.sqlite.session import SqliteSession
from taskmq.transport.sql.sqlite.wakeup import Wakeup
from taskmq.transport.sql.sqlite.words import WORDS
from taskmq.transport.sql.sqlite.writer import Turnstile, Writer
from taskmq.transport.sql.transport import SqlTransport
from taskmq.urls import without_secrets

T = TypeVar("T")
OLDEST = (3, 37, 0)
"""RETURNING, UPDATE FROM and generated columns."""
_SYNCHRONOUS = ("full", "normal", "off")
PATIENCE = 30.0
"""Seconds to wait for other writers before a verb fails."""


class Settings:
    """A parsed ``sqlite:///path?synchronous=full`` URL; raises ConfigError with the way out."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc:
            raise ConfigError(
                f"{without_secrets(url)!r} names a host: write sqlite:///relative.db or sqlite:////absolute.db "
                "(three or four slashes)"
            )
        if not path.startswith("/") or path == "/":
            raise ConfigError(f"{without_secrets(url)!r} names no file: write sqlite:///taskmq.db")
        if "\0" in path:
            raise ConfigError(f"{without_secrets(url)!r} has a NUL in its path, which no file can have")
        self.path = os.path.abspath(path[1:])
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.synchronous = options.pop("synchronous", "full").lower()
        if self.synchronous not in _SYNCHRONOUS:
            raise ConfigError(f"synchronous={self.synchronous!r} is not one of {', '.join(_SYNCHRONOUS)}")
        try:
            self.patience = float(options.pop("timeout", PATIENCE))
        except ValueError:
            self.patience = -1.0
        if not 0 <= self.patience < 1e6:
            raise ConfigError(f"{without_secrets(url)!r}: timeout is a number of seconds, 0 or more")
        if options:
            raise ConfigError(f"{without_secrets(url)!r}: unknown option {min(options)!r}; known: synchronous, timeout")


class SqliteEngine:
    """One file: a writing connection behind the writer, and a few reading ones."""

    name = "sqlite"
    batch = BATCH
    short = False
    capabilities = Capabilities(durable=True, shared=True)

    def __init__(self, settings: Settings, namespace: str) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old; taskmq needs 3.37 or newer")
        self.settings = settings
        self.namespace = namespace
        self._gate = ForkGate()
        self.clock: Clock = SystemClock()
        self._closed = False
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[sqlite3.Connection] = deque()
        path = self.settings.path
        with self._explained(), self._gate:
            self._connection = self._connect()
            self._turnstile = Turnstile(f"{path}-lock", self.settings.patience)
            prepare_schema(self._connection, self._turnstile, path)
        self._wakeup = Wakeup()
        self._writer = Writer(self._connection, self._turnstile, self._gate)
        self._session = SqliteSession(self._connection, self.namespace)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors on opening name the file."""
        try:
            yield
        except sqlite3.Error as error:
            known = translate(error)
            raise type(known)(f"{self.settings.path}: {known}") from error

    def _connect(self) -> sqlite3.Connection:
        if not Path(self.settings.path).parent.is_dir():
            raise ConfigError(f"the directory of {self.settings.path} does not exist; create it first")
        connection = sqlite3.connect(
            self.settings.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # Opening does not touch the file: the first pragma that reads it tells whether it is a database.
        connection.execute("PRAGMA busy_timeout=5000")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={self.settings.synchronous}")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA cache_size=-16000")
        connection.execute("PRAGMA journal_size_limit=67108864")
        connection.execute("PRAGMA busy_timeout=0")
        return connection

    def write(self, work: Callable[[SqliteSession], T], *, vital: bool = False) -> T:
        """Run ``work`` in a transaction that others may share; returns once it is on disk."""
        self._check()
        return self._writer.run(lambda: work(self._session))

    def within(self, connection: object, queues: Sequence[str], work: Callable[[SqliteSession], T]) -> T:
        """Run ``work`` in a user's transaction, which has the file's one writer's place until it ends."""
        self._check()
        user = driver_connection(connection, sqlite3.Connection, "a sqlite3.Connection")
        if not user.in_transaction:
            if user.isolation_level is None:
                raise no_transaction('execute("BEGIN IMMEDIATE")')
            with map_errors():
                user.execute("BEGIN IMMEDIATE")
        with map_errors():
            cursor = user.cursor()
            cursor.row_factory = None  # it is the user's connection, and may make dictionaries
            file = cursor.execute("PRAGMA database_list").fetchone()[2]
            if not os.path.exists(file) or not os.path.samefile(file, self.settings.path):
                raise InvalidArgument(
                    f"the connection is to {file or 'memory'}, and the tasks are in {self.settings.path}"
                )
            user.execute("SAVEPOINT taskmq")
            try:
                result = work(SqliteSession(user, self.namespace))
            except BaseException:
                if user.in_transaction:
                    user.execute("ROLLBACK TO taskmq")
                    user.execute("RELEASE taskmq")
                raise
            user.execute("RELEASE taskmq")
        return result

    def read(self, work: Callable[[Queries], T]) -> T:
        """Run ``work`` on what is committed."""
        with self.reader() as connection, self._gate:
            return work(
                Queries(lambda text, values: connection.execute(text, values).fetchall(), WORDS, self.namespace)
            )

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading, for one caller at a time."""
        self._check()
        with map_errors():
            try:
                connection = self._idle.pop()
            except IndexError:
                with self._gate:
                    connection = self._connect()
                    connection.execute("PRAGMA query_only=1")
            try:
                yield connection
            finally:
                if self._closed:
                    connection.close()
                else:
                    self._idle.append(connection)

    def _check(self) -> None:
        if self._closed:
            raise TransportError("this store is closed")
        if self._pid != os.getpid():  # a connection must not cross a fork: start afresh in the child
            self._open()

    def signal(self, queues: Iterable[str] | None = None) -> None:
        """Say that this process has committed something."""
        self._wakeup.signal()

    def wake(self) -> None:
        """Make every wait return."""
        self._wakeup.wake()

    def wait(self, queues: Sequence[str], timeout: float, now: Callable[[], int]) -> bool:
        """Block until something can be claimed."""
        self._check()
        return self._wakeup.wait(self.reader, self._gate, self.namespace, queues, timeout, now)

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task has ended or is gone."""
        self._check()
        return self._wakeup.watch(self.reader, self._gate, self.namespace, task_id, timeout)

    def checkup(self) -> list[Finding]:
        """What is wrong with the file and its settings."""
        from taskmq.transport.sql.sqlite.checkup import checkup  # for operators only: no worker pays for it

        with self.reader() as connection, self._gate:
            return checkup(self.settings.path, connection, self.namespace)

    def close(self) -> None:
        """Close every connection; the last process to do so folds the log into the file."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        if self._pid != os.getpid():
            return
        while self._idle:
            self._idle.pop().close()
        self._connection.close()
        self._turnstile.close()


def prepare_schema(connection: sqlite3.Connection, turnstile: Turnstile, path: str) -> None:
    """Create the schema in a new database; refuse one that this version does not know."""
    if _has_schema(connection, path):
        return
    from taskmq.transport.sql.sqlite.ddl import statements

    turnstile.begin(connection)
    try:
        if not _has_schema(connection, path):  # another process may have been faster
            for statement in statements():
                connection.execute(statement)
            connection.execute("INSERT INTO taskmq_schema(version) VALUES (?)", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _has_schema(connection: sqlite3.Connection, path: str) -> bool:
    row = connection.execute("SELECT count(*) FROM sqlite_master WHERE name='taskmq_schema'").fetchone()
    if not row[0]:
        return False
    found = connection.execute("SELECT max(version) FROM taskmq_schema").fetchone()[0] or 0
    check_version(
        path,
        found,
        f"of a taskmq before its first release; there is no way from it to {SCHEMA_VERSION}: start with a new file",
    )
    return True


def open_url(url: str, *, namespace: str = "default", clock: Clock | None = None) -> SqlTransport:
    """The store of a ``sqlite:///`` URL."""
    return SqlTransport(SqliteEngine(Settings(url), namespace), clock)
