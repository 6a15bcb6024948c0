"""The schema in PostgreSQL's words: tables with their comments, sequences, storage parameters.

The only place of this package that needs SQLAlchemy, and only to create a database.
"""

from __future__ import annotations

from sqlalchemy import ExecutableDDLElement
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable, SetColumnComment, SetTableComment

from taskmq.transport.sql.tables import metadata

_HOT = "autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_cost_delay=0"
STORAGE = {
    # A row that every claim updates: room for its next versions on the same page, and little patience with old ones.
    "taskmq_queues": f"fillfactor=20, autovacuum_vacuum_threshold=200, {_HOT}",
    "taskmq_counts": f"fillfactor=20, autovacuum_vacuum_threshold=200, {_HOT}",
    "taskmq_count_deltas": f"fillfactor=20, autovacuum_vacuum_threshold=200, {_HOT}",
    "taskmq_flows": f"fillfactor=70, autovacuum_vacuum_threshold=2000, {_HOT}",
    # A claim walks over what was deleted at the head of its line until vacuum has been there (measured without: claims
    # of 0.44 ms had become 0.67 ms after a million tasks; vacuumed every 10 s they stayed at 0.38 ms).
    "taskmq_tasks": "fillfactor=85, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_insert_scale_factor=0.1, "
    f"autovacuum_analyze_scale_factor=0.2, {_HOT}",
    "taskmq_history": "autovacuum_vacuum_scale_factor=0.02",
}


def statements() -> list[str]:
    """CREATE statements for a new database."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    ddl = [
        "CREATE SEQUENCE taskmq_seq",
        f"CREATE SEQUENCE taskmq_flow_seq START WITH {(1 << 61) + 1}",
    ]
    for table in metadata.sorted_tables:
        elements: list[ExecutableDDLElement] = [CreateTable(table), SetTableComment(table)]
        elements += [SetColumnComment(column) for column in table.columns if column.comment]
        elements += [
            CreateIndex(index)
            for index in sorted(table.indexes, key=lambda i: str(i.name))
            if index.info.get("shared") is not False
        ]
        ddl += [str(element.compile(dialect=dialect)).strip() for element in elements]
        if table.name in STORAGE:
            ddl.append(f"ALTER TABLE {table.name} SET ({STORAGE[table.name]})")
    return ddl


def drop_statements() -> list[str]:
    """What removes all of it."""
    tables = ", ".join(table.name for table in reversed(metadata.sorted_tables))
    return [f"DROP TABLE {tables}", "DROP SEQUENCE taskmq_seq, taskmq_flow_seq"]
