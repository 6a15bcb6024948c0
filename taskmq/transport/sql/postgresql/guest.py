"""A publish in a user's transaction on PostgreSQL.

The user's connection is as its owner has set it up: its rows may be dictionaries, its search path another one, its
statements few. So statements go one by one over a cursor of our own, inside a savepoint, and the search path is put
back. What locks a queue keeps it until the user commits, and its claims with it – a task with a key, a limit or a
partition should be published shortly before the commit. A plain task locks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from taskmq.errors import InvalidArgument
from taskmq.transport.sql.postgresql.exchange import Sent
from taskmq.transport.sql.postgresql.session import LONG_SLOTS, PgSession

Cursor = psycopg.Cursor[tuple[Any, ...]]
FIND = """
SELECT current_setting('search_path'), n.nspname, (SELECT oid FROM pg_namespace WHERE nspname=%s) IS NOT NULL
FROM (SELECT 1) one LEFT JOIN pg_class c ON c.oid=to_regclass('taskmq_schema')
LEFT JOIN pg_namespace n ON n.oid=c.relnamespace
"""
SET_PATH = "SELECT set_config('search_path', %s, true)"


@contextmanager
def within(connection: psycopg.Connection[Any], schema: str, where: str) -> Iterator[Cursor]:
    """A cursor in a savepoint of the connection's transaction that finds the tables of this schema."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute("SAVEPOINT taskmq")
        try:
            cursor.execute(FIND, (schema,))
            path, found, there = cursor.fetchone() or ("", None, False)
            if found != schema:
                if not there:
                    raise InvalidArgument(f"the connection is to another database than the tasks are in: {where}")
                cursor.execute(SET_PATH, ('"' + schema.replace('"', '""') + '"',))
            yield cursor
            if found != schema:
                cursor.execute(SET_PATH, (path,))
        except BaseException:
            if not connection.closed:
                cursor.execute("ROLLBACK TO SAVEPOINT taskmq")
                cursor.execute("RELEASE SAVEPOINT taskmq")
            raise
        cursor.execute("RELEASE SAVEPOINT taskmq")


class GuestSession(PgSession):
    """The statements of a publish in a transaction that is not ours."""

    def __init__(self, cursor: Cursor, namespace: str) -> None:
        super().__init__(cursor.connection, namespace, ())
        self.unlocked = self
        self.slots = LONG_SLOTS
        self._cursor = cursor

    def _exchange(self, pending: Sequence[Sent]) -> None:
        cursor = self._cursor
        for sent in pending:
            cursor.execute(sent.statement, sent.parameters)
            sent.rows, sent.count = cursor.fetchall() if cursor.description else [], cursor.rowcount

    def tell(self, channel: str, payload: str) -> None:
        """Send a notice with the commit."""
        self._later("SELECT pg_notify(%s, %s)", (channel, payload))
