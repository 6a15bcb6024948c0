"""The checks of ``doctor`` where they must be silent, and those parts that a real store cannot be brought to."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmq import App, QueueConfig, StoreFull, TaskInfo, TaskState
from taskmq.config import Config
from taskmq.doctor import checks, examine, facts
from taskmq.doctor.facts import Facts
from taskmq.transport.base import Finding, PartitionInfo, QueueStats, WorkerInfo
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.sql.sqlite import checkup

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


def seen(**fields: Any) -> Facts:
    """A well store, but for these facts."""
    well: dict[str, Any] = {
        "now": NOW,
        "clock": NOW,
        "durable": True,
        "shared": True,
        "config": Config(url="memory://"),
        "handlers": {},
        "queues": [],
        "workers": [],
        "stopped": {},
        "newest": None,
        "running": [],
    }
    return Facts(**{**well, **fields})


def worker(**fields: Any) -> WorkerInfo:
    row = WorkerInfo(
        id="w", host="h", pid=1, queues=["q"], pool="threads", concurrency=1, version="1", started_at=0, seen_at=NOW
    )
    return dataclasses.replace(row, **fields)


def queue(**fields: Any) -> QueueStats:
    return QueueStats(**{"name": "q", "config": QueueConfig(), **fields})


def stopped(**fields: Any) -> dict[str, list[PartitionInfo]]:
    base = {"queue": "q", "code": "!x", "ordered": True, "weight": 1, "waiting": 1, "running": 0}
    return {"q": [PartitionInfo(**{**base, **fields})]}


def task(**fields: Any) -> TaskInfo:
    base = {"id": "0" * 32, "queue": "q", "handler": "h", "state": TaskState.RUNNING, "priority": 0, "seq": 1}
    return TaskInfo(**{**base, "attempt": 1, "max_attempts": 3, "epoch": 1, "created_at": NOW, **fields})


@pytest.mark.parametrize(
    "facts",
    [
        seen(clock=NOW + 4 * SECOND),
        seen(workers=[worker(clock=0)]),
        seen(workers=[worker(clock=NOW - 4 * SECOND)]),
        seen(workers=[worker(seen_at=NOW - 19 * SECOND)]),
        seen(workers=[worker(), worker(id="v")]),
        seen(queues=[queue(config=QueueConfig(paused=True))]),
        seen(queues=[queue(running=1)]),
        seen(queues=[queue(ready=5, by_handler={"h": 5})], workers=[worker(handlers=("h",))]),
        seen(queues=[queue(ready=5, by_handler={"h": 5})], workers=[worker()]),
        seen(queues=[queue(by_handler={"h": 0})], workers=[worker(handlers=("g",))]),
        seen(queues=[queue(dead=99)]),
        seen(queues=[queue(config=QueueConfig(lease=5.0))]),
        seen(stopped=stopped(blocked_until=NOW + 599 * SECOND), workers=[worker()]),
        seen(stopped=stopped(blocked_until=NOW - 9 * SECOND), workers=[worker()]),
        seen(stopped=stopped(paused=True, waiting=0)),
        seen(running=[task(lease_until=NOW - 9 * SECOND)]),
        seen(newest=task(id="not one of ours")),
        seen(newest=task(id="")),
        seen(newest=task(created_at=NOW + 4 * SECOND)),
        seen(config=Config(url="memory://", queues={"unseen": QueueConfig(weight=3)})),
    ],
    ids=lambda facts: "",
)
def test_what_is_well_is_not_reported(facts: Facts) -> None:
    """Nothing is said of what is within its bounds, or of what nobody can know."""
    assert [finding for check in checks.CHECKS for finding in check(facts)] == []


def test_a_hold_without_tasks_behind_is_only_a_warning() -> None:
    """A held partition in which nothing waits keeps nothing from running yet."""
    (finding,) = checks.partitions(seen(stopped=stopped(held_by="0" * 32, waiting=0)))
    assert finding.level == "warning"


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_well_store_is_well(scheme: str, tmp_path: Path) -> None:
    """A new store has no fault, but that the memory store is what it is."""
    with App("memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/q.db") as app:
        assert [finding.check for finding in app.doctor()] == (["durability"] if scheme == "memory" else [])


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_tasks_without_a_worker_are_found_on_every_store(scheme: str, tmp_path: Path) -> None:
    """What is read through the seam is found on every store alike."""
    with App("memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/q.db") as app:
        app.ref("h", queue="q").enqueue()
        app.queue("p").pause()
        app.ref("h", queue="p").enqueue()
        found = [(one.check, one.text.split()[-1]) for one in app.doctor() if one.check != "durability"]
    assert found == [("workers", "it"), ("workers", "it"), ("paused", "it")]


class Refusing(MemoryTransport):
    """A store that answers reads and refuses writes."""

    def lock(self, name: str, owner: str, ttl: int) -> bool:
        raise StoreFull("no room")

    def checkup(self) -> list[Finding]:
        raise ValueError("surprise")


def test_a_store_that_refuses_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that can be read and not written is an error; a check that fails does not stop the others."""
    monkeypatch.setattr("taskmq.app.open_store", lambda *_, **__: Refusing())
    with App("memory://") as app:
        found = [(one.check, one.text, one.fix[:9]) for one in examine(app) if one.level == "error"]
    assert found == [
        ("content", "something in the store cannot be read: ValueError: surprise", "find the "),
        ("store", "no room", "make room"),
    ]


# ── SQLite's own ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "q.db")) as connection:
        yield connection


def test_a_journal_that_is_no_wal_is_found(connection: sqlite3.Connection) -> None:
    """A database whose file system cannot do WAL stays in another mode; that is an error."""
    (finding,) = checkup.journal(connection)
    assert finding.text.startswith("the database is in journal mode delete although")


def test_the_look_at_the_pages_is_bounded(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A database too large to look at in time is not reported as damaged, and its connection goes on."""
    connection.execute("CREATE TABLE t (x)")
    connection.execute(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n LIMIT 20000) INSERT INTO t SELECT x FROM n"
    )
    monkeypatch.setattr(checkup, "PATIENCE", -1.0)
    assert list(checkup.integrity(str(tmp_path / "q.db"), connection)) == []
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (20000,)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/data/q.db", "ext4"), ("/data/my share/q.db", "cifs"), ("/data2/q.db", "overlay"), ("/data/nfs/a/q.db", "nfs4")],
)
def test_the_nearest_mount_tells_the_file_system(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest mount point above a path counts, whole names only, with its escapes undone; the last one on top."""
    (tmp_path / "mounts").write_text(
        "overlay / overlay rw 0 0\n/dev/a /data ext3 rw 0 0\n/dev/b /data ext4 rw 0 0\n"
        "//s/x /data/my\\040share cifs rw 0 0\ns:/y /data/nfs nfs4 rw 0 0\n"
    )
    monkeypatch.setattr(checkup, "MOUNTS", tmp_path / "mounts")
    assert checkup.file_system(path) == kind


def test_without_a_mount_table_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On an operating system without a mount table the kind of file system is unknown, not wrong."""
    monkeypatch.setattr(checkup, "MOUNTS", tmp_path / "none")
    assert list(checkup.filesystem(str(tmp_path))) == []


def test_a_log_that_is_not_there_is_small(tmp_path: Path) -> None:
    """A database that nobody has open has no log."""
    assert list(checkup.log_size(str(tmp_path / "q.db"))) == []


def test_the_store_is_asked_for_its_clock_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two clocks are compared at the same moment: a slow answer is no wrong clock."""
    times = iter([NOW, NOW + 20 * SECOND])
    monkeypatch.setattr(facts, "_clock", lambda: next(times))
    with App("memory://") as app:
        monkeypatch.setattr(app.store, "now", lambda: NOW + 10 * SECOND)
        assert list(checks.clock(facts.read_facts(app, app.store, []))) == []
