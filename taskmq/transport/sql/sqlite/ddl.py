"""The schema in SQLite's words; the only place of this package that needs SQLAlchemy, and only for a new database."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteTypeCompiler
from sqlalchemy.schema import CreateIndex, CreateTable

from taskmq.transport.sql.tables import metadata


class StrictTypes(SQLiteTypeCompiler):
    """STRICT tables know five types. They refuse a value of another one, whoever writes it."""

    def _integer(self, type_: Any, **kw: Any) -> str:
        return "INTEGER"

    def _text(self, type_: Any, **kw: Any) -> str:
        return "TEXT"

    def _real(self, type_: Any, **kw: Any) -> str:
        return "REAL"

    visit_BIGINT = visit_SMALLINT = _integer  # noqa: N815 - the names of the compiler
    visit_VARCHAR = _text  # noqa: N815
    visit_DOUBLE = _real  # noqa: N815


def statements() -> list[str]:
    """CREATE statements for a new database."""
    dialect = sqlite.dialect()
    dialect.type_compiler_instance = StrictTypes(dialect)
    ddl = []
    for table in metadata.sorted_tables:
        if table.info.get("shared"):
            continue  # one writer at a time: nobody is in its way
        ddl.append(str(CreateTable(table).compile(dialect=dialect)))
        ddl += [
            str(CreateIndex(index).compile(dialect=dialect))
            for index in sorted(table.indexes, key=lambda i: str(i.name))
            if index.info.get("shared") is not True
        ]
    return ddl
