"""The schema in SQLite's words; the only place of this package that needs SQLAlchemy, and only for a new database."""

from __future__ import annotations

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from taskmq.transport.sql.tables import metadata


def statements() -> list[str]:
    """CREATE statements for a new database."""
    dialect = sqlite.dialect()
    ddl = []
    for table in metadata.sorted_tables:
        ddl.append(str(CreateTable(table).compile(dialect=dialect)))
        ddl += [
            str(CreateIndex(index).compile(dialect=dialect))
            for index in sorted(table.indexes, key=lambda i: str(i.name))
        ]
    return ddl
