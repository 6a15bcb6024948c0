"""A statement of a packet, and its answer."""

from __future__ import annotations

from typing import Any

from taskmq.transport.sql.mysql.drivers import MysqlCursor


class Sent:
    """A statement that is kept back; what it gave, once it has been sent."""

    __slots__ = ("first_id", "rowcount", "rows", "text")

    def __init__(self, text: str) -> None:
        self.text = text

    def take(self, cursor: MysqlCursor) -> None:
        """Keep the answer that the cursor has come to."""
        self.rows: list[tuple[Any, ...]] = list(cursor.fetchall()) if cursor.description else []
        self.rowcount = cursor.rowcount
        self.first_id = int(cursor.lastrowid or 0)
