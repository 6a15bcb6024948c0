"""Bringing a MySQL or MariaDB database to the schema of this version.

DDL commits by itself here, so a step is not all or nothing; it says IF NOT EXISTS and may be run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from taskmq.transport.sql.codes import SCHEMA_VERSION
from taskmq.transport.sql.migrations import Migrator, Plan
from taskmq.transport.sql.mysql.connection import MysqlConnection, connect, is_mariadb
from taskmq.transport.sql.mysql.errors import map_errors
from taskmq.transport.sql.mysql.settings import Settings


class MysqlHands:
    """One connection for each thing that is done."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @contextmanager
    def _connection(self) -> Iterator[MysqlConnection]:
        with closing(connect(self._settings)) as connection, map_errors():
            with connection.cursor() as cursor:
                cursor.execute("SELECT GET_LOCK(CONCAT('taskmq migrate ', DATABASE()), 3600)")
            yield connection

    def collation(self) -> str:
        """The collation that compares bytes, by the server's name for it."""
        from taskmq.transport.sql.mysql.ddl import MARIADB, MYSQL

        with self._connection() as connection:
            return MARIADB if is_mariadb(connection) else MYSQL

    def version(self) -> int | None:
        """The schema's version."""
        with self._connection() as connection, connection.cursor() as cursor:
            if not cursor.execute("SHOW TABLES LIKE 'taskmq_schema'"):
                return None
            cursor.execute("SELECT max(version) FROM taskmq_schema")
            (version,) = cursor.fetchone() or (None,)
            return None if version is None else int(version)

    def together(self, statements: Sequence[str]) -> None:
        """One after another."""
        with self._connection() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def batch(self, statement: str) -> int:
        """In a transaction of its own."""
        with self._connection() as connection, connection.cursor() as cursor:
            return int(cursor.execute(statement))

    def alone(self, statement: str) -> None:
        """As any other."""
        self.together([statement])

    def unfinished(self) -> int:
        """How many tasks have not ended."""
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM taskmq_tasks")
            (count,) = cursor.fetchone() or (0,)
            return int(count)


def open_migrator(url: str) -> Migrator:
    """The migrator of a ``mysql://`` or ``mariadb://`` URL."""
    from taskmq.transport.sql.mysql.ddl import drop_statements, statements  # needs SQLAlchemy

    hands = MysqlHands(Settings(url))
    create = tuple(statements(hands.collation()))
    return Migrator(hands, Plan(version=SCHEMA_VERSION, create=create, drop=tuple(drop_statements())))
