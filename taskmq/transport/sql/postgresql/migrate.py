"""Bringing a PostgreSQL database to the schema of this version."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from taskmq.errors import ConfigError, TransportUnavailable
from taskmq.transport.sql.codes import SCHEMA_VERSION
from taskmq.transport.sql.migrations import LOCK, TRIES, Migrator, Plan
from taskmq.transport.sql.postgresql.connection import is_pooled, plain_connection
from taskmq.transport.sql.postgresql.errors import map_errors
from taskmq.transport.sql.postgresql.settings import Settings

_ONE_AT_A_TIME = "SELECT pg_advisory_lock(hashtextextended('taskmq migrate', 0))"


class PgHands:
    """One connection for each thing that is done."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with plain_connection(self._settings) as connection, map_errors():
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
        raise TransportUnavailable(
            f"a table was in use for {TRIES * 2 * LOCK:.0f} s: some transaction is open for long (taskmq doctor names "
            "it); nothing was changed, try again"
        )

    def ask(self, statement: str) -> Any:
        """The first value of a question."""
        with self._connection() as connection:
            row = connection.execute(statement, prepare=False).fetchone()
            return row[0] if row else None

    def alone(self, statement: str) -> None:
        """Outside of a transaction."""
        with self._connection() as connection:
            connection.execute(statement, prepare=False)

    def unfinished(self) -> int:
        """How many tasks have not ended."""
        return int(self.ask("SELECT count(*) FROM taskmq_tasks") or 0)


def plan() -> Plan:
    """The schemas of this version."""
    from taskmq.transport.sql.postgresql.ddl import drop_statements, statements  # needs SQLAlchemy

    return Plan(version=SCHEMA_VERSION, create=tuple(statements()), drop=tuple(drop_statements()))


def open_migrator(url: str) -> Migrator:
    """The migrator of a ``postgresql://`` URL."""
    return Migrator(PgHands(Settings(url)), plan())
