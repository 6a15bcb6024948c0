"""Bringing a MySQL or MariaDB database to the schema of this version.

DDL commits by itself here, so a step is not all or nothing. What of it had been done when it was interrupted is
recognised by the server's answer – the column, the index, the constraint is there already – and passed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from taskmq.errors import TransportUnavailable
from taskmq.transport.sql.codes import SCHEMA_VERSION
from taskmq.transport.sql.migrations import LOCK, TRIES, Fill, Migrator, Plan
from taskmq.transport.sql.mysql.connection import connect, is_mariadb
from taskmq.transport.sql.mysql.drivers import MysqlConnection, MysqlCursor
from taskmq.transport.sql.mysql.errors import CONFLICTS, map_errors, number
from taskmq.transport.sql.mysql.settings import Settings

_DEADLOCK = 1213
_DONE = frozenset({1060, 1061, 1091, 1826, 3822})
"""There is such a column, index or constraint; there is none to be dropped."""


class MysqlHands:
    """One connection for each thing that is done."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._error = settings.driver.error

    @contextmanager
    def _connection(self) -> Iterator[MysqlConnection]:
        with closing(connect(self._settings)) as connection, map_errors(self._error):
            yield connection

    @contextmanager
    def _cursor(self) -> Iterator[MysqlCursor]:
        with self._connection() as connection, self._settings.driver.cursor(connection) as cursor:
            # One at a time, until the connection ends.
            cursor.execute("SELECT GET_LOCK(CONCAT('taskmq migrate ', DATABASE()), 3600)")
            cursor.execute(f"SET SESSION lock_wait_timeout={LOCK:.0f}, innodb_lock_wait_timeout={LOCK:.0f}")
            yield cursor

    def collation(self) -> str:
        """The collation that compares bytes, by the server's name for it."""
        from taskmq.transport.sql.mysql.ddl import MARIADB, MYSQL

        with self._connection() as connection:
            return MARIADB if is_mariadb(connection) else MYSQL

    def version(self) -> int | None:
        """The schema's version."""
        with self._cursor() as cursor:
            cursor.execute("SHOW TABLES LIKE 'taskmq_schema'")
            if not cursor.fetchall():
                return None
            cursor.execute("SELECT max(version) FROM taskmq_schema")
            (version,) = cursor.fetchone() or (None,)
            return None if version is None else int(version)

    def together(self, statements: Sequence[str]) -> None:
        """One after another; each gives way when it does not get its locks at once."""
        with self._cursor() as cursor:
            for statement in statements:
                self._patiently(cursor, statement)

    def alone(self, statement: str) -> None:
        """As any other: an index is built beside the table, but wants it for itself when it begins and ends."""
        self.together([statement])

    def _patiently(self, cursor: MysqlCursor, statement: str) -> None:
        for _ in range(TRIES):
            try:
                cursor.execute(statement)
                return
            except self._error as error:
                if number(error) in _DONE:
                    return
                if number(error) not in CONFLICTS:
                    raise
                time.sleep(0 if number(error) == _DEADLOCK else LOCK)
        raise TransportUnavailable(
            f"a table was in use for {TRIES * 2 * LOCK:.0f} s: some transaction is open for long (taskmq doctor names "
            "it); try again, what has been done is not done twice"
        )

    def fill(self, fill: Fill) -> None:
        """A deadlock is found at once here, and the statement is the one that is run again."""
        with self._cursor() as cursor:
            for rows in fill.pages(partial(_first_value, cursor)):
                self._patiently(cursor, f"UPDATE {fill.table} SET {fill.assignments} WHERE {rows}")

    def unfinished(self) -> int:
        """How many tasks have not ended."""
        with self._cursor() as cursor:
            return int(_first_value(cursor, "SELECT count(*) FROM taskmq_tasks"))


def _first_value(cursor: MysqlCursor, statement: str) -> Any:
    cursor.execute(statement)
    row = cursor.fetchone()
    return row[0] if row else None


def open_migrator(url: str) -> Migrator:
    """The migrator of a ``mysql://`` or ``mariadb://`` URL."""
    hands = MysqlHands(Settings(url))
    return Migrator(hands, plan(hands.collation()))


def plan(collation: str) -> Plan:
    """The schemas of this version."""
    from taskmq.transport.sql.mysql.ddl import drop_statements, statements  # needs SQLAlchemy

    return Plan(version=SCHEMA_VERSION, create=tuple(statements(collation)), drop=tuple(drop_statements()))
