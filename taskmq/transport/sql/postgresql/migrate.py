"""Bringing a PostgreSQL database to the schema of this version."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from taskmq.errors import TransportUnavailable
from taskmq.transport.sql.codes import SCHEMA_VERSION
from taskmq.transport.sql.migrations import Migrator, Plan
from taskmq.transport.sql.postgresql.errors import map_errors, refused
from taskmq.transport.sql.postgresql.settings import Settings

LOCK = 1.0
"""Seconds that a change waits for a table, and everybody else behind it."""
TRIES = 60
_ONE_AT_A_TIME = "SELECT pg_advisory_lock(hashtextextended('taskmq migrate', 0))"


class PgHands:
    """One connection for each thing that is done."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        try:
            connection = psycopg.connect(**self._settings.parameters, autocommit=True)  # type: ignore[arg-type]
        except psycopg.Error as error:
            raise refused(error, self._settings.where) from error
        with connection, map_errors():
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
                except psycopg.errors.LockNotAvailable:
                    pass
            time.sleep(LOCK)
        raise TransportUnavailable(
            f"a table was in use for {TRIES * 2 * LOCK:.0f} s: some transaction is open for long (taskmq doctor names "
            "it); nothing was changed, try again"
        )

    def batch(self, statement: str) -> int:
        """In a transaction of its own."""
        with self._connection() as connection:
            return max(0, connection.execute(statement, prepare=False).rowcount)

    def alone(self, statement: str) -> None:
        """Outside of a transaction."""
        with self._connection() as connection:
            connection.execute(statement, prepare=False)

    def unfinished(self) -> int:
        """How many tasks have not ended."""
        with self._connection() as connection:
            row = connection.execute("SELECT count(*) FROM taskmq_tasks").fetchone()
            return int(row[0]) if row else 0


def plan() -> Plan:
    """The schemas of this version."""
    from taskmq.transport.sql.postgresql.ddl import drop_statements, statements  # needs SQLAlchemy

    return Plan(version=SCHEMA_VERSION, create=tuple(statements()), drop=tuple(drop_statements()))


def open_migrator(url: str) -> Migrator:
    """The migrator of a ``postgresql://`` URL."""
    return Migrator(PgHands(Settings(url)), plan())
