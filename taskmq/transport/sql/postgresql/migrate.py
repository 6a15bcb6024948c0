"""Bringing a PostgreSQL database to the schema of this version."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psycopg

from taskmq.errors import ConfigError, TransportUnavailable
from taskmq.transport.sql.codes import SCHEMA_VERSION
from taskmq.transport.sql.migrations import LOCK, TRIES, Fill, Migrator, Plan
from taskmq.transport.sql.postgresql.connection import is_pooled, plain_connection
from taskmq.transport.sql.postgresql.errors import map_errors
from taskmq.transport.sql.postgresql.settings import Settings

Connection = psycopg.Connection[tuple[Any, ...]]
PASSES, PAUSE = 2400, 0.05
_LEFT_OPEN = "some transaction is open for long (taskmq doctor names it); try again, what is done stays done"
_ONE_AT_A_TIME = "SELECT pg_advisory_lock(hashtextextended('taskmq migrate', 0))"


class PgHands:
    """One connection for each thing that is done."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with plain_connection(self._settings, psycopg.Connection) as connection, map_errors():
            if is_pooled(connection):
                raise ConfigError(
                    f"{self._settings.where} is a pooler: a migration wants the server itself, for it keeps a lock and "
                    "settings on its session"
                )
            connection.execute(_ONE_AT_A_TIME)  # until the connection ends
            yield connection

    def version(self) -> int | None:
        """The schema's version."""
        with self._connection() as connection:
            row = connection.execute("SELECT to_regclass('taskmq_schema')").fetchone()
            if row is None or row[0] is None:
                return None
            row = connection.execute("SELECT max(version) FROM taskmq_schema").fetchone()
            return int(row[0]) if row and row[0] is not None else None

    def together(self, statements: Sequence[str]) -> None:
        """In one transaction, which gives way when it does not get its locks at once."""
        for _ in range(TRIES):
            with self._connection() as connection:
                connection.execute(f"SET lock_timeout='{LOCK:g}s'")
                try:
                    with connection.transaction():
                        for statement in statements:
                            connection.execute(statement, prepare=False)
                    return
                except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                    pass
            time.sleep(LOCK)
        raise TransportUnavailable(f"a table was in use for {TRIES * 2 * LOCK:.0f} s: {_LEFT_OPEN}")

    def fill(self, fill: Fill) -> None:
        """Pass over what others have locked, and come again.

        Who waits for nobody is in no deadlock, which would cost somebody a second.
        """
        with self._connection() as connection:
            connection.execute(f"SET lock_timeout='{LOCK:g}s'")
            for rows in fill.pages(partial(_first_value, connection)):
                self._fill_page(connection, fill, rows)

    def _fill_page(self, connection: Connection, fill: Fill, rows: str) -> None:
        free = f"SELECT {fill.key} FROM {fill.table} WHERE {rows} ORDER BY {fill.key} FOR UPDATE SKIP LOCKED"
        update = f"UPDATE {fill.table} SET {fill.assignments} WHERE {fill.key} = ANY(ARRAY({free}))"
        for _ in range(PASSES):
            with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                connection.execute(update, prepare=False)
                if _first_value(connection, f"SELECT 1 FROM {fill.table} WHERE {rows} LIMIT 1") is None:
                    return
            time.sleep(PAUSE)
        raise TransportUnavailable(f"rows of {fill.table} were locked for {PASSES * PAUSE:.0f} s: {_LEFT_OPEN}")

    def alone(self, statement: str) -> None:
        """Outside of a transaction."""
        with self._connection() as connection:
            connection.execute(statement, prepare=False)

    def unfinished(self) -> int:
        """How many tasks have not ended."""
        with self._connection() as connection:
            return int(_first_value(connection, "SELECT count(*) FROM taskmq_tasks"))


def _first_value(connection: Connection, statement: str) -> Any:
    row = connection.execute(statement, prepare=False).fetchone()
    return row[0] if row else None


def plan() -> Plan:
    """The schemas of this version."""
    from taskmq.transport.sql.postgresql.ddl import drop_statements, statements  # needs SQLAlchemy

    return Plan(version=SCHEMA_VERSION, create=tuple(statements()), drop=tuple(drop_statements()))


def open_migrator(url: str) -> Migrator:
    """The migrator of a ``postgresql://`` URL."""
    return Migrator(PgHands(Settings(url)), plan())
