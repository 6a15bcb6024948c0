"""Opening the server's tables with SQLAlchemy: the database is the one that the store's URL names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.pool import QueuePool

from taskmq.errors import ConfigError, TaskMQError, TransportError, TransportUnavailable
from taskmq.urls import without_secrets

_DIALECTS = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "mysql+mysqldb": "mysql+mysqldb",
    "mariadb+mysqldb": "mariadb+mysqldb",
}


def open_engine(url: str) -> Engine:
    """An engine for the server's tables; raises ConfigError for a URL that names no SQL database."""
    parts = urlsplit(url)
    if parts.scheme not in ("sqlite", *_DIALECTS):
        known = ", ".join(f"{scheme}://" for scheme in ("sqlite", *_DIALECTS) if "+" not in scheme)
        raise ConfigError(f"the server needs a SQL database, not {without_secrets(url)!r}: {known}")
    try:
        if parts.scheme == "sqlite":
            return _open_sqlite(url)
        connect = _postgresql(url) if parts.scheme == "postgresql" else _mysql(url)
        return create_engine(
            f"{_DIALECTS[parts.scheme]}://",
            creator=connect,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=8,
            pool_timeout=10,
        )
    except (ArgumentError, ModuleNotFoundError) as error:
        raise ConfigError(f"{without_secrets(url)!r} cannot be used: {error}") from error


def _postgresql(url: str) -> Callable[[], Any]:
    """Connections as the store opens them: it knows which of the URL's options are the driver's."""
    import psycopg

    from taskmq.transport.sql.postgresql.connection import plain_connection
    from taskmq.transport.sql.postgresql.settings import Settings

    settings = Settings(url)

    def connect() -> Any:
        connection = plain_connection(settings, psycopg.Connection)
        connection.autocommit = False
        return connection

    return connect


def _mysql(url: str) -> Callable[[], Any]:
    from taskmq.transport.sql.mysql.connection import connect
    from taskmq.transport.sql.mysql.settings import Settings

    settings = Settings(url)

    def transactional() -> Any:
        connection = connect(settings)
        connection.autocommit(False)
        return connection

    return transactional


def _open_sqlite(url: str) -> Engine:
    from taskmq.transport.sql.sqlite.connection import Settings
    from taskmq.transport.sql.sqlite.ddl import StrictTypes

    settings = Settings(url)
    engine = create_engine(
        f"sqlite:///{settings.path}",
        connect_args={"timeout": min(settings.patience, 10.0), "check_same_thread": False},
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=8,
    )

    engine.dialect.type_compiler_instance = StrictTypes(engine.dialect)

    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={settings.synchronous}")

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("write") else "BEGIN")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


class Conflict(TaskMQError):
    """Somebody else wrote the same name or id at the same time; nothing was stored."""


class Database:
    """Transactions on the server's tables. Driver errors leave as those of the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = open_engine(url)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that changes something."""
        with map_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(write=True)
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        with map_errors(), self.engine.connect() as connection, connection.begin():
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


@contextmanager
def map_errors() -> Iterator[None]:
    """Errors of the driver in the words of taskmq."""
    try:
        yield
    except OperationalError as error:
        raise TransportUnavailable(f"the database cannot be reached or is locked: {error.orig}") from error
    except IntegrityError as error:
        raise Conflict("somebody else wrote the same at the same time") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise TransportUnavailable(f"the database went away: {error.orig}") from error
        raise TransportError(f"the database refused: {error.orig}") from error


__all__ = ["Conflict", "Database", "map_errors", "open_engine"]
