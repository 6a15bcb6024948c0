"""Aging order over HTTP, with stored times: who goes first, and what stands behind it, in each database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from tests.server.kit import Running, Socket, running, token
from tests.server.places import KINDS, database

SECOND = 1_000_000


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("order")
    with running(path, database_url=database(request.param, path), request_rate=1e6, request_burst=10**6) as made:
        yield made


def due_ago(own: Running, task: dict[str, Any], seconds: float, other: dict[str, Any]) -> None:
    """Make the first task due so long before the second one."""
    with own.database.write() as connection:
        find = text("SELECT available_at FROM taskmq_tasks WHERE id=:id")
        at = connection.execute(find, {"id": other["task_id"]}).scalar_one() - int(seconds * SECOND)
        change = text("UPDATE taskmq_tasks SET available_at=:at WHERE id=:id")
        connection.execute(change, {"at": at, "id": task["task_id"]})


@pytest.mark.parametrize(("ago", "first"), [(5, "B"), (269, "B"), (271, "A")])
def test_waiting_is_worth_a_priority_level_each_thirty_seconds(own: Running, ago: int, first: str) -> None:
    a, b = own.submit("A"), own.submit("B", priority=9)
    due_ago(own, a, ago, b)
    with Socket(own) as worker:
        worker.hello()
        order = [task["task_id"] for task in worker.claim(2)]
    names = {a["task_id"]: "A", b["task_id"]: "B"}
    assert names[order[0]] == first


def test_what_is_not_due_is_not_eligible_whatever_its_priority(own: Running) -> None:
    a, _ = own.submit("A"), own.submit("B", priority=9, delay_ms=3_600_000)
    with Socket(own) as worker:
        worker.hello()
        assert [task["task_id"] for task in worker.claim(5)] == [a["task_id"]]


def test_equal_priorities_go_by_due_time_then_by_acceptance(own: Running) -> None:
    made = [own.submit(f"k{i}") for i in range(3)]
    due_ago(own, made[2], 1, made[0])
    due_ago(own, made[1], 0, made[0])
    with Socket(own) as worker:
        worker.hello()
        assert [task["task_id"] for task in worker.claim(3)] == [made[i]["task_id"] for i in (2, 0, 1)]


def test_a_retry_keeps_its_priority_and_recomputes_its_place(own: Running) -> None:
    made = own.submit("k", priority=4)
    with Socket(own) as worker:
        worker.hello()
        task = worker.take()
        worker.ask("finish", **token(task), outcome="retry", delay_ms=60_000)
    seen = own.task(made["task_id"])
    assert seen["priority"] == 4
    assert seen["available_at"] > made["available_at"]
    assert seen["dispatch_at"] > made["dispatch_at"]


COLUMNS = "seq, id, queue_id, state, available_at, max_attempts, created_at, handler, handler_id, body"
VALUES = "1000000000000000, 'x', 999999, 1, 5, 1, 0, 'h', 1, '{}'"


def test_a_row_that_knows_no_priority_has_priority_0_and_is_dispatched_by_its_due_time(server: Running) -> None:
    with server.database.write() as connection:
        connection.execute(text(f"INSERT INTO taskmq_tasks({COLUMNS}) VALUES ({VALUES})"))
        row = connection.execute(text("SELECT priority, dispatch_at FROM taskmq_tasks WHERE id='x'")).one()
        connection.execute(text("DELETE FROM taskmq_tasks WHERE id='x'"))
    assert tuple(row) == (0, 5)


@pytest.mark.parametrize("priority", [-1, 10])
def test_the_database_itself_refuses_a_priority_out_of_range(server: Running, priority: int) -> None:
    with pytest.raises(DBAPIError), server.database.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO taskmq_tasks({COLUMNS}, priority) VALUES ({VALUES}, {priority})"))


def test_dispatch_times_are_generated_and_read_only(server: Running) -> None:
    columns = {column["name"]: column for column in inspect(server.database.engine).get_columns("taskmq_tasks")}
    assert columns["dispatch_at"]["computed"]["persisted"]
    with pytest.raises(DBAPIError), server.database.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO taskmq_tasks({COLUMNS}, dispatch_at) VALUES ({VALUES}, 7)"))


def test_the_line_is_an_index_in_the_order_of_claims(server: Running) -> None:
    """An engine without partial indexes has the state in it."""
    indexes = {i["name"]: i["column_names"] for i in inspect(server.database.engine).get_indexes("taskmq_tasks")}
    line = [column for column in indexes["ix_taskmq_tasks_line"] if column != "state"]
    assert line == ["lane", "s1", "s2", "seq", "handler_id"]


def test_there_are_no_foreign_keys_and_every_table_says_what_it_is(server: Running) -> None:
    seen = inspect(server.database.engine)
    tables = [name for name in seen.get_table_names() if name.startswith("taskmq_")]
    assert len(tables) > 15
    assert not any(seen.get_foreign_keys(name) for name in tables)
    if server.settings.database_url.startswith("sqlite"):
        return  # it has no comments
    assert not [name for name in tables if not seen.get_table_comment(name)["text"]]
    described = {column["name"] for column in seen.get_columns("taskmq_tasks") if column["comment"]}
    assert {"seq", "state", "available_at", "dispatch_at", "s1", "s2", "due_at"} <= described
    own = ("taskmq_applications", "taskmq_namespaces", "taskmq_environments", "taskmq_tokens", "taskmq_sessions")
    assert not [(name, c["name"]) for name in own for c in seen.get_columns(name) if not c["comment"]]
