"""The way from one schema to the next, with an earlier schema that exists only here (earlier.py) and has data in it."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pymysql
import pytest
from click.testing import CliRunner

from taskmq.cli.main import cli
from taskmq.errors import ConfigError, TransportError
from taskmq.testing.mariadb_server import MariadbServer
from taskmq.testing.sql_fill import Server
from taskmq.transport.registry import open_schema, open_store
from taskmq.transport.sql.tables import metadata
from tests.sql.earlier import FIRST, MARIADB, POSTGRESQL, EarlierWorker, make_earlier
from tests.sql.help import acknowledge, claim, publish, work_off
from tests.sql.online import migrator, run
from tests.sql.sides import Side, shared, until

TASKS = 1500
"""More than are filled in at a time."""


@pytest.fixture(params=["postgresql", "mariadb"])
def side(request: pytest.FixtureRequest) -> Side:
    return shared(request.param)


@pytest.fixture
def server(side: Side) -> Server:
    return side.server


@contextmanager
def _place(server: Server) -> Iterator[str]:
    """An empty schema or database of its own."""
    name = f"m{uuid.uuid4().hex[:12]}"
    kind = "DATABASE" if isinstance(server, MariadbServer) else "SCHEMA"
    server.execute(f"CREATE {kind} {name}")
    yield name
    server.execute(f"DROP {kind} {name}" + ("" if isinstance(server, MariadbServer) else " CASCADE"))


@pytest.fixture
def empty(server: Server) -> Iterator[str]:
    with _place(server) as name:
        yield name


@pytest.fixture
def old(server: Server, empty: str) -> str:
    """Schema 1, which knew no priorities, with tasks in it."""
    make_earlier(server, empty, TASKS)
    return empty


def test_an_empty_database_gets_the_newest_schema(server: Server, empty: str) -> None:
    """Once; after that there is nothing to do."""
    schema = open_schema(server.url(empty))
    assert schema.status().found is None
    assert schema.up() == ["create schema 2"]
    assert schema.status().found == schema.status().needed == 2
    assert schema.up() == []


COMMENTS = {
    "postgresql": (
        "SELECT relname, coalesce(attname, ''), description FROM pg_description JOIN pg_class c ON c.oid=objoid "
        "LEFT JOIN pg_attribute ON attrelid=objoid AND attnum=objsubid AND objsubid>0 "
        "WHERE classoid='pg_class'::regclass AND relnamespace='{place}'::regnamespace"
    ),
    "mariadb": (
        "SELECT table_name, '', table_comment FROM information_schema.tables WHERE table_schema='{place}' UNION ALL "
        "SELECT table_name, column_name, column_comment FROM information_schema.columns WHERE table_schema='{place}'"
    ),
}
FOREIGN = {
    "postgresql": "SELECT conname FROM pg_constraint WHERE contype='f' AND connamespace='{place}'::regnamespace",
    "mariadb": (
        "SELECT constraint_name FROM information_schema.table_constraints WHERE constraint_type='FOREIGN KEY' "
        "AND table_schema='{place}'"
    ),
}


def test_everything_is_commented(server: Server, empty: str) -> None:
    """Tables all, columns where their name does not say it; and no foreign key anywhere."""
    open_schema(server.url(empty)).up()
    engine = "mariadb" if isinstance(server, MariadbServer) else "postgresql"
    found = {(table, column): text for table, column, text in server.execute(COMMENTS[engine].format(place=empty))}
    meant = {(table.name, ""): table.comment for table in metadata.sorted_tables}
    meant |= {
        (table.name, column.name): column.comment
        for table in metadata.sorted_tables
        for column in table.columns
        if column.comment
    }
    assert None not in meant.values()
    assert {at: found.get(at) for at in meant} == meant
    assert server.execute(FOREIGN[engine].format(place=empty)) == []


def test_the_database_checks_the_priority(server: Server, empty: str) -> None:
    """Also what somebody else writes; in a new schema and in a migrated one."""
    make_earlier(server, empty, 1)
    migrator(server, empty).up()
    with _place(server) as new:
        open_schema(server.url(new)).up()
        with closing(open_store(server.url(new))) as store:
            publish(store)
        for place, priority in itertools.product((empty, new), (-1, 10)):
            with pytest.raises((psycopg.errors.CheckViolation, pymysql.OperationalError), match="priority"):
                server.execute(f"UPDATE taskmq_tasks SET priority={priority}", place)


@pytest.mark.parametrize("side", ["postgresql", "postgresql-new", "mariadb"], indirect=True)
def test_tasks_of_an_older_schema_are_worked_off(server: Server, old: str) -> None:
    """They have priority 0 and are dispatched when they fall due; none is lost, and their order is the old one."""
    with pytest.raises(ConfigError, match="run taskmq migrate up"):
        open_store(server.url(old))
    assert migrator(server, old).status().steps == ["2: priorities"]
    assert migrator(server, old).up() == ["2: priorities"]
    as_before = "SELECT count(*) FROM taskmq_tasks WHERE priority=0 AND dispatch_at=available_at AND version=''"
    assert server.execute(as_before, old) == [(TASKS,)]
    with closing(open_store(server.url(old))) as store:
        publish(store, 5)
        held = claim(store, 100)
        assert [delivery.token for delivery in held] == list(range(FIRST + 1, FIRST + 101))
        assert all(acknowledge(store, held))
        assert len(work_off(store)) == TASKS + 5 - len(held)


def test_a_migrated_table_has_what_a_new_one_has(server: Server, old: str) -> None:
    """The same columns and the same indexes."""
    migrator(server, old).up()
    with _place(server) as new:
        open_schema(server.url(new)).up()
        assert _shape(server, old) - {"ix_taskmq_tasks_first"} == _shape(server, new)


def _shape(server: Server, place: str) -> set[str]:
    columns = f"SELECT column_name FROM information_schema.columns WHERE table_schema='{place}'"
    indexes = (
        f"SELECT index_name FROM information_schema.statistics WHERE table_schema='{place}'"
        if isinstance(server, MariadbServer)
        else f"SELECT indexname FROM pg_indexes WHERE schemaname='{place}'"
    )
    of_tasks = " AND table_name='taskmq_tasks'"
    here = of_tasks if isinstance(server, MariadbServer) else " AND tablename='taskmq_tasks'"
    return {row[0] for row in [*server.execute(columns + of_tasks), *server.execute(indexes + here)]}


def test_a_step_that_was_interrupted_is_done_again(server: Server, old: str) -> None:
    """Whatever part of it had been done, and the version says that it was not done."""
    step = MARIADB if isinstance(server, MariadbServer) else POSTGRESQL
    for broken in (
        replace(step, statements=(*step.statements, "SELECT no_such_thing")),
        replace(step, alone=(step.alone[0], "SELECT no_such_thing")),
        replace(step, alone=(*step.alone, "SELECT no_such_thing")),
    ):
        with pytest.raises((TransportError, ConfigError)):
            migrator(server, old, broken).up()
        assert migrator(server, old).status().found == 1
    migrator(server, old).up()
    assert migrator(server, old).status().found == 2


def test_work_goes_on_while_a_table_changes(server: Server, empty: str) -> None:
    """Workers of the old version publish and claim all the while, and then beside one of the new version.

    Each task is done once, by either; the new version's urgent ones come first. With a million tasks, by hand:
    ``python -m tests.sql.online``.
    """
    seen = run(server, empty, 5000)
    assert seen.calls > 0
    assert seen.longest < 4.0, "1 s at most for a lock, and what a machine adds that is busy with other tests"
    assert seen.urgent == [9] * 5
    done = [*seen.old, *seen.new]
    assert len(done) == len(set(done))
    left = {seq for (seq,) in server.execute("SELECT seq FROM taskmq_tasks", empty)}
    assert set(range(FIRST + 1, FIRST + 5001)) <= left | set(done), "tasks that are gone"


def test_a_step_gives_way_to_those_who_work(side: Side, server: Server, old: str) -> None:
    """While somebody has the table in use, a change waits a second at most; it is done when the table is free."""
    worker = EarlierWorker(server, old)
    with closing(worker.connection):
        with side.connect(old) as user:
            user.execute("SELECT count(*) FROM taskmq_tasks")
            thread = threading.Thread(target=migrator(server, old).up)
            thread.start()
            until(lambda: _waits(side, server), "the change does not wait")
            worker.publish()  # behind the waiting change
            assert worker.longest < 4.0, "as above"
            user.commit()
        thread.join(60)
    assert migrator(server, old).status().found == 2


def _waits(side: Side, server: Server) -> bool:
    if isinstance(server, MariadbServer):
        return bool(
            server.execute(
                "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata%'"
            )
        )
    return side.somebody_waits()


def test_the_way_back(server: Server, old: str) -> None:
    """A step is undone; the first schema goes only when nothing is lost, or by force."""
    there = migrator(server, old)
    there.up()
    assert there.down() == "back to schema 1"
    with pytest.raises(TransportError, match="1,500 unfinished tasks"):
        there.down()
    assert there.down(force=True) == "the schema is removed"
    assert there.status().found is None


def test_the_script_makes_the_same_schema(server: Server, empty: str) -> None:
    """What ``taskmq migrate sql`` prints can be run by hand."""
    said = CliRunner().invoke(cli, ["migrate", "sql", "--url", server.url(empty)])
    assert said.exit_code == 0, said.output
    for statement in said.output.split(";\n"):
        if statement.strip():
            server.execute(statement, empty)
    with closing(open_store(server.url(empty))) as store:
        publish(store, 3)
        assert len(work_off(store)) == 3


def test_the_script_of_a_step_says_how_to_run_it(server: Server, old: str) -> None:
    """What must be alone or a few rows at a time has a comment of its own in front of it."""
    script = migrator(server, old).sql(1)
    assert script[0] == "-- 2: priorities"
    assert script[-1] == "UPDATE taskmq_schema SET version=2"
    before = {script[place + 1].split()[0]: line for place, line in enumerate(script[:-1]) if line.startswith("-- ")}
    assert "some thousand rows at a time" in before["UPDATE"]
    assert any("outside of a transaction" in line for line in script)


def test_the_command_line(server: Server, empty: str) -> None:
    """Status says what is to be done, up does it, down undoes it."""

    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["migrate", *words, "--url", server.url(empty, pool="2")])
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
