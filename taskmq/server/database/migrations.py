"""The schema's way up and down, in numbered steps. Each is additive, and one transaction where the engine can.

Step 1 is the store's schema, as the library makes it for itself; a database that a library has made is recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Dialect, Table, inspect, select
from sqlalchemy.schema import (
    CreateIndex,
    CreateTable,
    DropTable,
    ExecutableDDLElement,
    SetColumnComment,
    SetTableComment,
)

from taskmq.clock import SystemClock
from taskmq.errors import TaskMQError
from taskmq.server.database import tables
from taskmq.server.database.engine import Database, open_engine
from taskmq.transport.base import Schema
from taskmq.transport.registry import open_schema, open_store


class Migration(NamedTuple):
    """One step. ``store``: it is the store's own schema, which its engine makes."""

    version: int
    name: str
    tables: Sequence[Table] = ()
    store: bool = False


MIGRATIONS = (
    Migration(1, "tasks, queues, partitions and history of the store", store=True),
    Migration(
        2,
        "applications, namespaces, environments, queues, tokens and audit",
        (
            *(tables.applications, tables.namespaces, tables.environments, tables.queues, tables.tokens),
            *(tables.secrets, tables.audit),
        ),
    ),
    Migration(3, "sessions of workers, requests to cancel", (tables.sessions, tables.cancels)),
)
LATEST = MIGRATIONS[-1].version


class NewerDatabase(TaskMQError):
    """The database was migrated by a newer program; nothing was touched."""


class Status(NamedTuple):
    """Where a database is. ``behind``: the store's own tables are of an older schema than this program's."""

    current: int
    latest: int
    behind: bool = False

    @property
    def pending(self) -> int:
        """How many steps are missing."""
        return max(0, self.latest - self.current) + (self.behind and self.current > 0)


def status(database: Database) -> Status:
    """Where the database is; raises NewerDatabase."""
    with database.read() as connection:
        current = _current(connection)
    if current > LATEST:
        raise NewerDatabase(f"the database is at {current:06d}, this program knows {LATEST:06d}: upgrade taskmq")
    schema = _store_schema(database)
    store = None if schema is None else schema.status()
    if store is not None and (store.found or 0) > store.needed:
        raise NewerDatabase(f"the store's tables are of schema {store.found}, this program knows {store.needed}")
    return Status(current, LATEST, behind=store is not None and store.found != store.needed)


def up(database: Database, to: int | None = None) -> int:
    """Apply what is missing, up to ``to``; how many steps that were. Raises NewerDatabase."""
    target = LATEST if to is None else min(to, LATEST)
    found = status(database)
    wanted = [step for step in MIGRATIONS if found.current < step.version <= target]
    if found.behind and found.current > 0:
        _make_store(database)
    for step in wanted:
        if step.store:
            _make_store(database)
        with database.write() as connection:
            if not inspect(connection).has_table(tables.migrations.name):
                for statement in _creates([tables.migrations], connection.dialect):
                    connection.execute(statement)
            if _current(connection) >= step.version:
                continue  # another process was faster
            for statement in _creates(step.tables, connection.dialect):
                connection.execute(statement)
            row = {"version": step.version, "name": step.name, "applied_at": SystemClock().now()}
            connection.execute(tables.migrations.insert().values(row))
    return len(wanted) + (found.behind and found.current > 0)


def down(database: Database, to: int) -> int:
    """Undo the steps above ``to``, with all that is in their tables; how many."""
    current = status(database).current
    undone = [step for step in reversed(MIGRATIONS) if to < step.version <= current]
    with database.write() as connection:
        for step in undone:
            for table in _store_tables(connection) if step.store else reversed(step.tables):
                connection.execute(DropTable(table, if_exists=True))
            connection.execute(tables.migrations.delete().where(tables.migrations.c.version == step.version))
    schema = _store_schema(database)
    while schema is not None and any(step.store for step in undone) and schema.status().found is not None:
        schema.down(force=True)
    return len(undone)


def statements(to: int | None = None, url: str = "sqlite:///:memory:") -> list[str]:
    """What ``up`` would run in an empty database of this kind, as text."""
    engine = open_engine(url)
    dialect, now = engine.dialect, SystemClock().now()
    lines = [str(statement.compile(dialect=dialect)) for statement in _creates([tables.migrations], dialect)]
    for step in MIGRATIONS:
        if to is None or step.version <= to:
            lines += _store_statements(url) if step.store else []
            lines += [str(statement.compile(dialect=dialect)) for statement in _creates(step.tables, dialect)]
            row = tables.migrations.insert().values(version=step.version, name=step.name, applied_at=now)
            lines.append(str(row.compile(dialect=dialect, compile_kwargs={"literal_binds": True})))
    engine.dispose()
    return [line if line.startswith("--") else f"{line.strip()};" for line in lines]


def _store_statements(url: str) -> list[str]:
    if url.startswith("sqlite"):
        from taskmq.transport.sql.sqlite.ddl import statements as of_store

        return list(of_store())
    return open_schema(url).sql()


def _creates(wanted: Sequence[Table], dialect: Dialect) -> list[ExecutableDDLElement]:
    made: list[ExecutableDDLElement] = []
    for table in wanted:
        made.append(CreateTable(table))
        if dialect.supports_comments and not dialect.inline_comments:
            made.append(SetTableComment(table))
            made += [SetColumnComment(column) for column in table.columns if column.comment]
        made += [CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name))]
    return made


def _current(connection: Connection) -> int:
    if not inspect(connection).has_table(tables.migrations.name):
        return 0
    versions = connection.execute(select(tables.migrations.c.version)).scalars().all()
    return max(versions, default=0)


def _store_schema(database: Database) -> Schema | None:
    """The store's schema where it is migrated and not made by whoever opens it."""
    return None if database.engine.dialect.name == "sqlite" else open_schema(database.url)


def _make_store(database: Database) -> None:
    """Create the store's tables, or bring them up to date."""
    schema = _store_schema(database)
    if schema is not None:
        schema.up()
    else:
        open_store(database.url).close()


def _store_tables(connection: Connection) -> list[Table]:
    """The store's tables in a SQLite file; a database server's are the engine's to remove."""
    if connection.dialect.name != "sqlite":
        return []
    from taskmq.transport.sql.tables import metadata

    found = set(inspect(connection).get_table_names())
    return [table for table in reversed(metadata.sorted_tables) if table.name in found]


__all__ = ["LATEST", "MIGRATIONS", "Migration", "NewerDatabase", "Status", "down", "statements", "status", "up"]
