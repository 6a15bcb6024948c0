"""Something else has written into the database: that task is set aside, the others go on (reliability page, B39)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from taskmq import App
from taskmq.errors import ConfigError
from taskmq.outcome import Ack
from taskmq.state import TaskState
from taskmq.transport.base import Reserve, Settle, Settlement
from taskmq.transport.registry import open_store


def tamper(path: Path, statement: str, *values: object) -> None:
    """Change the database behind taskmq's back."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


@pytest.mark.parametrize(
    "change",
    ["max_attempts='many'", "attempts='few'", "available_at='soon'", "expires_at='x'", "state=9", "state='x'"]
    + [f"{column}=x'ff'" for column in ("body", "code", "handler", "tags")],
)
def test_a_value_of_the_wrong_kind_is_refused_by_the_table(tmp_path: Path, change: str) -> None:
    """Not even the database's own shell can store it."""
    path = tmp_path / "q.db"
    with App(f"sqlite:///{path}") as app:
        task_id = app.ref("h").enqueue().id
        with pytest.raises(sqlite3.IntegrityError):
            tamper(path, f"UPDATE taskmq_tasks SET {change} WHERE id=?", task_id)


@pytest.mark.parametrize("change", ["attempt_log='{garbage'", "attempt_log='[5]'", "tags='{garbage'", "progress='7'"])
@pytest.mark.parametrize("handler", ["good", "bad"])
def test_a_damaged_record_still_runs_and_can_be_listed(tmp_path: Path, change: str, handler: str) -> None:
    """What cannot be read of it counts as absent, and no other task notices."""
    path = tmp_path / "q.db"
    with App(f"sqlite:///{path}") as app:

        @app.task(name="good")
        def good(n: int) -> None: ...

        ids = [good.enqueue(n).id for n in range(4)]
        tamper(path, f"UPDATE taskmq_tasks SET handler=?, {change} WHERE id=?", handler, ids[1])
        assert len(list(app.tasks())) == 4
        with app.worker(concurrency=1) as worker:
            assert worker.drain(20)
        assert [app.get(i).state for i in (ids[0], *ids[2:])] == [TaskState.SUCCEEDED] * 3
        assert app.get(ids[1]).state == (TaskState.SUCCEEDED if handler == "good" else TaskState.RETRYING)


def test_a_damaged_body_is_dead_at_once_and_listed_with_the_reason(tmp_path: Path) -> None:
    """Arguments that cannot be read will not be readable at the next attempt either."""
    path = tmp_path / "q.db"
    with App(f"sqlite:///{path}") as app:

        @app.task(name="good")
        def good(n: int) -> None: ...

        ids = [good.enqueue(n).id for n in range(3)]
        tamper(path, "UPDATE taskmq_tasks SET body='{garbage' WHERE id=?", ids[1])
        assert app.get(ids[1]).error == "its stored arguments are damaged"
        with app.worker(concurrency=1) as worker:
            assert worker.drain(20)
        assert (app.get(ids[1]).state, app.get(ids[1]).reason) == (TaskState.FAILED, "arguments")
        assert app.get(ids[2]).state is TaskState.SUCCEEDED


def test_damaged_settings_of_one_queue_count_as_none(tmp_path: Path) -> None:
    """The statistics of all others stay visible, and the queue works."""
    path = tmp_path / "q.db"
    with App(f"sqlite:///{path}") as app:
        app.queue("q").configure(weight=2, rate="5/s")
        app.queue("r").configure(weight=3)
        tamper(path, "UPDATE taskmq_queues SET config='{x', rate='{x' WHERE name='q'")
        assert [stats.config.weight for stats in app.store.stats()] == [1, 3]
        app.ref("h", queue="q").enqueue()
        assert len(app.store.reserve(Reserve(queues=["q"], limit=1, worker="w")).deliveries) == 1


def test_a_damaged_worker_row_hides_no_other(tmp_path: Path) -> None:
    """It is left out."""
    path = tmp_path / "q.db"
    with App(f"sqlite:///{path}") as app, app.worker(queues="q", name="w1"):
        tamper(path, "INSERT INTO taskmq_workers VALUES ('w0', 'default', '{x', ?)", 1 << 60)
        assert "w1" in [worker.id for worker in app.store.workers()]


def test_another_namespace_cannot_settle_a_delivery(tmp_path: Path) -> None:
    """A delivery belongs to the namespace that it was claimed in."""
    url = f"sqlite:///{tmp_path}/q.db"
    mine, other = open_store(url), open_store(url, namespace="other")
    App(url).ref("h").enqueue()
    (delivery,) = mine.reserve(Reserve(queues=["default"], limit=1, worker="w")).deliveries
    settle = Settle(items=[Settlement(delivery, Ack())])
    assert other.settle(settle) == [False]
    assert mine.settle(settle) == [True]


def test_a_database_from_before_the_first_release_is_refused(tmp_path: Path) -> None:
    """Its tables are not these, and the message says what to do."""
    path = tmp_path / "q.db"
    App(f"sqlite:///{path}").store.close()
    tamper(path, "UPDATE taskmq_schema SET version=1")
    with pytest.raises(ConfigError, match="before its first release"):
        open_store(f"sqlite:///{path}")
