"""A publish in a user's transaction on MySQL or MariaDB.

The user's connection is as its owner has set it up: its rows may be dictionaries, it may know no packets of several
statements, and its ``sql_mode`` may give quotes and empty strings other meanings. So statements go one by one over
cursors of our own, inside a savepoint, and a mode that would change them is put aside for so long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from taskmq.errors import InvalidArgument
from taskmq.transport.sql.mysql.drivers import MysqlCursor
from taskmq.transport.sql.mysql.packet import Sent
from taskmq.transport.sql.mysql.session import LONG_SLOTS, MysqlSession
from taskmq.transport.sql.mysql.settings import MODE, Settings

_HARMLESS = frozenset((*MODE.split(","), "STRICT_TRANS_TABLES", "ONLY_FULL_GROUP_BY", "NO_AUTO_CREATE_USER", ""))
_SET_MODE = "SET SESSION sql_mode=%s"


@contextmanager
def within(cursor: MysqlCursor, settings: Settings) -> Iterator[None]:
    """A savepoint of the connection's transaction, in which our statements mean what they say."""
    with cursor:
        cursor.execute("SELECT DATABASE(), @@sql_mode")
        database, mode = cursor.fetchone() or ("", "")
        if database != settings.database:
            raise InvalidArgument(f"the connection is to {database}, and the tasks are in {settings.where}")
        odd = "STRICT_" not in mode or not _HARMLESS.issuperset(mode.split(","))
        cursor.execute("SAVEPOINT taskmq")
        try:
            if odd:
                cursor.execute(_SET_MODE, (MODE,))
            yield
        except BaseException:
            cursor.execute("ROLLBACK TO SAVEPOINT taskmq")
            raise
        finally:
            if odd:
                cursor.execute(_SET_MODE, (mode,))
        cursor.execute("RELEASE SAVEPOINT taskmq")


class GuestSession(MysqlSession):
    """The statements of a publish in a transaction that is not ours."""

    def __init__(self, cursor: MysqlCursor, namespace: str) -> None:
        super().__init__(cursor, namespace, ())
        self.slots = LONG_SLOTS

    def _exchange(self, pending: Sequence[Sent]) -> None:
        for sent in pending:
            super()._exchange([sent])
