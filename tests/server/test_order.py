"""Aging order over HTTP, with stored times: who goes first, and what stands behind it in the database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from taskmq.transport.sql.sqlite.connection import Settings as Url
from tests.server.kit import Running, Socket, token

SECOND = 1_000_000


def due_ago(own: Running, task: dict[str, Any], seconds: float, other: dict[str, Any]) -> None:
    """Make the first task due so long before the second one."""
    with own.database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE taskmq_tasks SET available_at=(SELECT available_at FROM taskmq_tasks WHERE id=?)-? WHERE id=?",
            (other["task_id"], int(seconds * SECOND), task["task_id"]),
        )


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


def test_the_schema_has_what_the_design_promises(own: Running) -> None:
    with closing(sqlite3.connect(Url(own.settings.database_url).path)) as database:
        (tasks,) = database.execute("SELECT sql FROM sqlite_master WHERE name='taskmq_tasks'").fetchone()
        everything = " ".join(row[0] or "" for row in database.execute("SELECT sql FROM sqlite_master"))
        with pytest.raises(sqlite3.IntegrityError, match="priority"):
            database.execute(
                "INSERT INTO taskmq_tasks(id,queue_id,state,priority,available_at,max_attempts,created_at,handler,"
                "handler_id,body) VALUES ('x',1,1,10,0,1,0,'h',1,'{}')"
            )
    assert "dispatch_at INTEGER GENERATED ALWAYS AS (available_at - priority * aging_us) STORED" in tasks
    assert "REFERENCES" not in everything.upper()
