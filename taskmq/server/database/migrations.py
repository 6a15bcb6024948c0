"""The schema's way up and down, in numbered steps. Each is additive, and one transaction where the engine can.

Step 1 is the store's schema, as the library makes it for itself; a database that a library has made is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Table, inspect, select
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from taskmq.clock import SystemClock
from taskmq.errors import TaskMQError
from taskmq.server.database import tables
from taskmq.server.database.engine import Database


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
    """Where a database is."""

    current: int
    latest: int

    @property
    def pending(self) -> int:
        """How many steps are missing."""
        return max(0, self.latest - self.current)


def status(database: Database) -> Status:
    """Where the database is; raises NewerDatabase."""
    with database.read() as connection:
        found = Status(_current(connection), LATEST)
    if found.current > LATEST:
        raise NewerDatabase(f"the database is at {found.current:06d}, this program knows {LATEST:06d}: upgrade taskmq")
    return found


def up(database: Database, to: int | None = None) -> int:
    """Apply what is missing, up to ``to``; how many steps that were. Raises NewerDatabase."""
    target = LATEST if to is None else min(to, LATEST)
    wanted = [step for step in MIGRATIONS if status(database).current < step.version <= target]
    for step in wanted:
        if step.store:
            _make_store(database)
        with database.write() as connection:
            if not inspect(connection).has_table(tables.migrations.name):
                connection.execute(CreateTable(tables.migrations))
            if _current(connection) >= step.version:
                continue  # another process was faster
            for statement in _creates(step.tables):
                connection.execute(statement)
            row = {"version": step.version, "name": step.name, "applied_at": SystemClock().now()}
            connection.execute(tables.migrations.insert().values(row))
    return len(wanted)


def down(database: Database, to: int) -> int:
    """Undo the steps above ``to``, with all that is in their tables; how many."""
    current = status(database).current
    undone = [step for step in reversed(MIGRATIONS) if to < step.version <= current]
    with database.write() as connection:
        for step in undone:
            for table in _store_tables(connection) if step.store else reversed(step.tables):
                connection.execute(DropTable(table, if_exists=True))
            connection.execute(tables.migrations.delete().where(tables.migrations.c.version == step.version))
    return len(undone)


def statements(to: int | None = None) -> list[str]:
    """What ``up`` would run in an empty SQLite database, as text."""
    from sqlalchemy.dialects import sqlite

    from taskmq.transport.sql.sqlite.ddl import statements as of_store

    lines = []
    for step in MIGRATIONS:
        if to is None or step.version <= to:
            lines += of_store() if step.store else []
            lines += [str(statement.compile(dialect=sqlite.dialect())) for statement in _creates(step.tables)]
    return [f"{line.strip()};" for line in lines]


def _creates(wanted: Sequence[Table]) -> list[CreateTable | CreateIndex]:
    made: list[CreateTable | CreateIndex] = []
    for table in wanted:
        made.append(CreateTable(table))
        made += [CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name))]
    return made


def _current(connection: Connection) -> int:
    if not inspect(connection).has_table(tables.migrations.name):
        return 0
    versions = connection.execute(select(tables.migrations.c.version)).scalars().all()
    return max(versions, default=0)


def _make_store(database: Database) -> None:
    """Create the store's schema, unless it is there."""
    with database.read() as connection:
        if inspect(connection).has_table("taskmq_schema"):
            return
    maker: Callable[[str], None] = _make_by_opening
    if database.engine.dialect.name == "postgresql":
        from taskmq.transport.sql.postgresql.migrate import create as maker
    maker(database.url)


def _make_by_opening(url: str) -> None:
    from taskmq.transport.registry import open_store

    open_store(url).close()


def _store_tables(connection: Connection) -> list[Table]:
    from taskmq.transport.sql.tables import metadata

    found = set(inspect(connection).get_table_names())
    return [table for table in reversed(metadata.sorted_tables) if table.name in found]


__all__ = ["LATEST", "MIGRATIONS", "Migration", "NewerDatabase", "Status", "down", "statements", "status", "up"]
