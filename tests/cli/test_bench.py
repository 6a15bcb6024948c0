"""``taskmq bench``: figures of a store, and nothing left of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from taskmq.cli import measure
from tests.cli.project import URL, Taskmq, tasks

TABLES = ("tasks", "history", "queues", "flows", "keys", "locks", "workers")


def rows() -> dict[str, int]:
    with closing(sqlite3.connect("shop.db")) as connection:
        return {table: connection.execute(f"SELECT count(*) FROM taskmq_{table}").fetchone()[0] for table in TABLES}


def test_every_figure_is_there_and_nothing_else_is_left(taskmq: Taskmq, shop: Path) -> None:
    """All measures give a figure above nothing; the store has exactly what it had before."""
    taskmq("enqueue", "shop.note", "--app", "shop", "--args", '["mine"]')
    before = rows()
    ran = taskmq("bench", "shop", "--tasks", "20", "--payload", "1000", "--concurrency", "2", "--json")
    (figures,) = ran.json
    assert (figures.pop("store"), figures.pop("tasks")) == (URL, 20)
    assert (figures.pop("payload"), figures.pop("concurrency")) == (1000, 2)
    assert figures.keys() == set(measure.Measured._fields)
    assert all(value > 0 for value in figures.values())
    assert figures["latency_p99_ms"] >= figures["latency_p50_ms"]
    assert rows() == before
    assert [task.args for task in tasks()] == [["mine"]]


def test_it_prints_a_table(taskmq: Taskmq, project: Path) -> None:
    """Without --json the figures are a table with their units."""
    ran = taskmq("bench", "--url", "memory://", "--tasks", "5")
    assert (ran.code, ran.err) == (0, "")
    assert [row[2] for row in ran.table] == ["tasks/s"] * 4 + ["ms"] * 2


def test_an_interrupted_one_leaves_nothing(taskmq: Taskmq, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle is exit code 130, and what was published for it is gone."""
    taskmq("enqueue", "shop.note", "--app", "shop", "--args", '["mine"]')
    before = rows()

    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_claim_settle", interrupted)
    ran = taskmq("bench", "shop", "--tasks", "5")
    assert (ran.code, ran.err) == (130, "taskmq: interrupted\n")
    assert rows() == before


def test_a_worker_that_does_not_start_tasks_is_told(
    taskmq: Taskmq, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a published task is never started, bench says so instead of hanging."""
    monkeypatch.setattr(measure, "PATIENCE", 0.0)
    ran = taskmq("bench", "--url", "memory://", "--tasks", "1")
    assert (ran.code, ran.err) == (1, "taskmq: a task was not started within 0 s; see taskmq doctor\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tasks", "0"), "0 is not in the range"),
        (("--payload", "1000000"), "1000000 is not in the range"),
        (("--concurrency", "x"), "'x' is not a valid integer"),
        ((), "no store to look at"),
    ],
)
def test_a_wrong_line_measures_nothing(taskmq: Taskmq, project: Path, words: tuple[str, ...], told: str) -> None:
    """A number outside its range, or no store, is one line and exit code 2."""
    ran = taskmq("bench", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert told in ran.err
