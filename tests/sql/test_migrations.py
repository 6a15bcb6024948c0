"""The way from one schema to the next, with an earlier schema that exists only here and has data in it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from taskmq.cli.main import cli
from taskmq.errors import ConfigError, TransportError
from taskmq.testing.sql_servers import PostgresServer
from taskmq.transport.registry import open_schema, open_store
from taskmq.transport.sql.migrations import Fill, Migrator, Step
from taskmq.transport.sql.postgresql.ddl import statements
from taskmq.transport.sql.postgresql.migrate import PgHands, plan
from taskmq.transport.sql.postgresql.settings import Settings
from tests.sql.help import publish, work_off

LINE = next(text for text in statements() if "ix_taskmq_tasks_line " in text)
_GENERATED = {
    "dispatch_at": "BIGINT GENERATED ALWAYS AS (available_at - priority * aging_us) STORED",
    "s1": "BIGINT GENERATED ALWAYS AS "
    "(CASE WHEN aging_us > 0 THEN available_at - priority * aging_us ELSE 9 - priority END) STORED",
    "s2": "SMALLINT GENERATED ALWAYS AS (CASE WHEN aging_us > 0 THEN priority ELSE 0 END) STORED",
}
PRIORITIES = Step(
    version=2,
    title="priorities",
    statements=(
        "ALTER TABLE taskmq_tasks ADD COLUMN IF NOT EXISTS aging_us BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE taskmq_tasks ADD COLUMN IF NOT EXISTS priority SMALLINT NOT NULL DEFAULT 0",
        "ALTER TABLE taskmq_tasks DROP CONSTRAINT IF EXISTS ck_taskmq_tasks_priority",
        "ALTER TABLE taskmq_tasks ADD CONSTRAINT ck_taskmq_tasks_priority CHECK (priority BETWEEN 0 AND 9) NOT VALID",
        *(f"ALTER TABLE taskmq_tasks ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in _GENERATED.items()),
    ),
    fills=(Fill(table="taskmq_tasks", assignments="version=''", missing="version IS NULL"),),
    alone=(
        "ALTER TABLE taskmq_tasks VALIDATE CONSTRAINT ck_taskmq_tasks_priority",
        "DROP INDEX CONCURRENTLY IF EXISTS ix_taskmq_tasks_line",
        LINE.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY"),
    ),
    back=("ALTER TABLE taskmq_tasks DROP COLUMN priority CASCADE, DROP COLUMN aging_us CASCADE",),
)
"""What a source without priorities goes through: its tasks get priority 0, so that they are dispatched when they fall
due, as before."""


@contextmanager
def _place(server: PostgresServer) -> Iterator[str]:
    """An empty schema of its own."""
    name = f"m{uuid.uuid4().hex[:12]}"
    server.execute(f"CREATE SCHEMA {name}")
    yield name
    server.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def empty(server: PostgresServer) -> Iterator[str]:
    with _place(server) as name:
        yield name


@pytest.fixture
def old(server: PostgresServer, empty: str) -> str:
    """Schema 1, which knew no priorities, with 250 tasks."""
    open_schema(server.url(empty)).up()
    store = open_store(server.url(empty))
    publish(store, 250)
    store.close()
    run(server, empty, "ALTER TABLE taskmq_tasks DROP COLUMN priority CASCADE, DROP COLUMN aging_us CASCADE")
    run(server, empty, "UPDATE taskmq_schema SET version=1")
    return empty


def run(server: PostgresServer, schema: str, statement: str) -> list[Any]:
    with psycopg.connect(server.dsn(), autocommit=True, options=f"-csearch_path={schema}") as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def migrator(server: PostgresServer, schema: str, *steps: Step) -> Migrator:
    return Migrator(PgHands(Settings(server.url(schema))), replace(plan(), steps=steps))


def test_an_empty_database_gets_the_newest_schema(server: PostgresServer, empty: str) -> None:
    """Once; after that there is nothing to do."""
    schema = open_schema(server.url(empty))
    assert schema.status().found is None
    assert schema.up() == ["create schema 2"]
    assert schema.status().found == schema.status().needed == 2
    assert schema.up() == []


def test_everything_is_commented(server: PostgresServer, empty: str) -> None:
    """Tables all, columns where their name does not say it; and no foreign key anywhere."""
    open_schema(server.url(empty)).up()
    bare = run(
        server,
        empty,
        "SELECT relname FROM pg_class WHERE relkind='r' AND relnamespace=current_schema()::regnamespace "
        "AND obj_description(oid) IS NULL",
    )
    assert bare == []
    ours = "connamespace=current_schema()::regnamespace"
    assert run(server, empty, f"SELECT conname FROM pg_constraint WHERE contype='f' AND {ours}") == []
    store = open_store(server.url(empty))
    publish(store)
    store.close()
    with pytest.raises(psycopg.errors.CheckViolation):
        run(server, empty, "UPDATE taskmq_tasks SET priority=10")


def test_tasks_of_an_older_schema_are_worked_off(server: PostgresServer, old: str) -> None:
    """They have priority 0 and are dispatched when they fall due; none is lost."""
    with pytest.raises(ConfigError, match="run taskmq migrate up"):
        open_store(server.url(old))
    assert migrator(server, old, PRIORITIES).status().steps == ["2: priorities"]
    assert migrator(server, old, PRIORITIES).up() == ["2: priorities"]
    assert run(server, old, "SELECT count(*) FROM taskmq_tasks WHERE priority=0 AND dispatch_at=available_at") == [
        (250,)
    ]
    assert run(server, old, "SELECT count(*) FROM taskmq_tasks WHERE version IS NULL") == [(0,)]
    store = open_store(server.url(old))
    publish(store, 5)
    assert len(work_off(store)) == 255
    store.close()


def test_a_step_that_was_interrupted_is_done_again(server: PostgresServer, old: str) -> None:
    """Whatever part of it had been done, and the version says that it was not done."""
    broken = replace(PRIORITIES, alone=(*PRIORITIES.alone, "SELECT 1/0"))
    with pytest.raises(TransportError):
        migrator(server, old, broken).up()
    assert migrator(server, old, PRIORITIES).status().found == 1
    migrator(server, old, PRIORITIES).up()
    assert migrator(server, old, PRIORITIES).status().found == 2


def test_a_step_gives_way_to_those_who_work(server: PostgresServer, old: str) -> None:
    """While somebody has the table in use, a change waits a second at most; it is done when the table is free."""
    with psycopg.connect(server.dsn(), options=f"-csearch_path={old}") as user:
        user.execute("SELECT count(*) FROM taskmq_tasks")
        thread = threading.Thread(target=migrator(server, old, PRIORITIES).up)
        thread.start()
        time.sleep(0.2)
        began = time.monotonic()
        run(server, old, "SELECT count(*) FROM taskmq_tasks")  # behind the waiting change
        assert time.monotonic() - began < 2.5
    thread.join(60)
    assert migrator(server, old, PRIORITIES).status().found == 2


def test_the_way_back(server: PostgresServer, old: str) -> None:
    """A step is undone; the first schema goes only when nothing is lost, or by force."""
    there = migrator(server, old, PRIORITIES)
    there.up()
    assert there.down() == "back to schema 1"
    with pytest.raises(TransportError, match="250 unfinished tasks"):
        there.down()
    assert there.down(force=True) == "the schema is removed"
    assert there.status().found is None


def test_no_way_is_said(server: PostgresServer, old: str) -> None:
    """A schema from before the first release is not guessed at; a newer one is not touched."""
    with pytest.raises(ConfigError, match="no way from schema 1"):
        open_schema(server.url(old)).up()
    run(server, old, "UPDATE taskmq_schema SET version=99")
    with pytest.raises(ConfigError, match="newer taskmq"):
        open_schema(server.url(old)).up()


def test_the_script_makes_the_same_schema(server: PostgresServer, empty: str) -> None:
    """What ``taskmq migrate sql`` prints can be run by hand."""
    said = CliRunner().invoke(cli, ["migrate", "sql", "--url", server.url(empty)])
    assert said.exit_code == 0, said.output
    run(server, empty, said.output)
    store = open_store(server.url(empty))
    publish(store, 3)
    assert len(work_off(store)) == 3
    store.close()


def test_the_command_line(server: PostgresServer, empty: str) -> None:
    """Status says what is to be done, up does it, down undoes it."""

    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["migrate", *words, "--url", server.url(empty)])
        return done.exit_code, done.output

    assert call("status") == (1, "current=000000 latest=000003 pending=3\n")
    assert call("up") == (0, "applied=3 current=000003\n")
    assert call("up") == (0, "applied=0 current=000003\n")
    assert call("status", "--json")[0] == 0
    assert call("down", "--to", "0")[0] == 2  # it deletes: not without --yes
    assert call("down", "--to", "0", "--yes") == (0, "undone=3 current=000000\n")
    assert call("up") == (0, "applied=3 current=000003\n")


def test_other_stores_are_not_migrated() -> None:
    """They make what they need by themselves, and the command says so."""
    said = CliRunner().invoke(cli, ["migrate", "up", "--url", "redis://nowhere"])
    assert said.exit_code == 2
    assert "needs a SQL database" in said.output
