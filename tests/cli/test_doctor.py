"""``taskmq doctor`` and ``app.doctor()``: each made fault is found, by both, with the same words."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from taskmq import App, ConfigError
from taskmq.cli.target import Target, open_app
from taskmq.config import Config
from taskmq.doctor import examine, facts
from taskmq.durations import Moment
from taskmq.message import Message
from taskmq.outcome import Dead, Defer
from taskmq.testing.clock import FakeClock
from taskmq.transport.base import Finding, Publish, Reserve, Settle, Settlement, Store, WorkerInfo
from taskmq.transport.registry import open_store
from taskmq.transport.sql.sqlite import checkup
from tests.cli.conftest import forget_modules
from tests.cli.project import Taskmq

URL = "sqlite:///shop.db"
SECOND = 1_000_000
HOUR = 3600 * SECOND
SHOP = """
from taskmq import App, QueueConfig
app = App("sqlite:///shop.db", queues={"mail": QueueConfig(weight=3)})

@app.task(queue="mail", timeout="30s")
def send(to: str) -> None: ...

@app.task(queue="mail", timeout="30s")
async def fetch(url: str) -> None: ...
"""


class Place:
    """Where a fault is made: a folder, with a patient that lives until the end of the test."""

    def __init__(self, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.patch = patch
        self.stack = stack
        self.numbers = itertools.count()

    def store(self, ago: int = 0, url: str = URL) -> Store:
        """The store, opened by a process whose clock is so many microseconds behind."""
        clock = FakeClock(time.time_ns() // 1000 - ago) if ago else None
        return self.stack.enter_context(closing(open_store(url, clock=clock)))

    def publish(self, store: Store, queue: str = "mail", count: int = 1, **fields: Any) -> list[str]:
        """Tasks whose publisher has the store's clock; returns their ids."""
        app = self.stack.enter_context(App("memory://"))
        bound = app.ref("shop.send", queue=queue).using(**fields)
        ids = [f"{store.now() // 1000:012x}7{next(self.numbers):019x}" for _ in range(count)]
        messages = [msgspec.structs.replace(bound.message("a"), id=task_id) for task_id in ids]
        store.publish(Publish(messages=messages))
        return [message.id for message in messages]

    def work(self, store: Store, **fields: Any) -> None:
        """A live worker's row that nothing is wrong with."""
        row = WorkerInfo(
            id="w1",
            host="h1",
            pid=1,
            queues=["mail"],
            pool="processes",
            concurrency=4,
            version="1",
            started_at=0,
            handlers=("shop.fetch", "shop.send"),
            clock=store.now(),
        )
        store.heartbeat(dataclasses.replace(row, **fields), HOUR)

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect("shop.db")) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()


@pytest.fixture
def place(project: Path) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        yield Place(patch, stack)


# ── the faults ───────────────────────────────────────────────────────────────────────────────────────────────────────


def newer_schema(place: Place) -> None:
    place.store().close()
    place.sql("UPDATE taskmq_schema SET version=99")


def no_database(place: Place) -> None:
    Path("shop.db").write_text("Dear diary, " * 100)


def no_directory(place: Place) -> None:
    pass


def old_library(place: Place) -> None:
    place.patch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))


def locked(place: Place) -> None:
    place.store().close()
    other = place.stack.enter_context(closing(sqlite3.connect("shop.db", isolation_level=None)))
    other.execute("BEGIN IMMEDIATE")


def nothing(place: Place) -> None:
    pass


def no_permission(place: Place) -> None:
    place.patch.setattr(checkup.os, "access", lambda what, mode: not str(what).endswith(".db"))


def network_disk(place: Place) -> None:
    Path("mounts").write_text(f"/dev/x / ext4 rw 0 0\nsrv:/x {str(Path.cwd()).replace(' ', chr(92) + '040')} nfs4 rw\n")
    place.patch.setattr(checkup, "MOUNTS", Path("mounts").resolve())


def little_room(place: Place) -> None:
    place.patch.setattr(checkup, "disk_usage", lambda _: type("Usage", (), {"free": 100 * checkup.MIB}))


def no_room(place: Place) -> None:
    place.patch.setattr(checkup, "disk_usage", lambda _: type("Usage", (), {"free": 1 * checkup.MIB}))


def big_log(place: Place) -> None:
    place.publish(place.store())  # it stays open, so the log stays, too
    place.patch.setattr(checkup, "BIG_WAL", 1000)


def damaged_pages(place: Place) -> None:
    store = place.store()
    place.publish(store, count=50)
    store.close()
    with closing(sqlite3.connect("shop.db")) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name='taskmq_history'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with Path("shop.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def wrong_clock_here(place: Place) -> None:
    right = facts._clock
    place.patch.setattr(facts, "_clock", lambda: right() + 60 * SECOND)


def wrong_clock_of_a_worker(place: Place) -> None:
    store = place.store()
    place.work(store, clock=store.now() - 60 * SECOND)


def wrong_clock_of_a_publisher(place: Place) -> None:
    store = place.store()
    place.work(store)
    ahead = f"{store.now() // 1000 + 60_000:012x}7" + "0" * 19
    store.publish(Publish(messages=[Message(id=ahead, queue="mail", handler="shop.send", body=b"{}")]))


def store_clock_set_back(place: Place) -> None:
    ahead = place.store(ago=-HOUR)
    place.publish(ahead)
    place.work(place.store())


def unknown_handler(place: Place) -> None:
    store = place.store()
    place.publish(store, count=2)
    place.work(store, handlers=("other",))


def handler_of_another_app(place: Place) -> None:
    store = place.store()
    store.publish(Publish(messages=[Message(id=f"{1:032x}", queue="mail", handler="shop.gone", body=b"{}")]))


def no_worker(place: Place) -> None:
    place.publish(place.store(), count=3)


def no_worker_later(place: Place) -> None:
    place.publish(place.store(), run_after=3600)


def paused_queue(place: Place) -> None:
    store = place.store()
    place.work(store)
    place.publish(store, count=3)
    store.pause_queue("mail", True)


def held_partitions(place: Place) -> None:
    store = place.store()
    place.work(store)
    with App(URL) as app:
        app.queue("mail").configure(on_dead="hold")
    for code in "abcdefg":
        place.publish(store, count=2, partition=f"!{code}")
    for _ in "abcdefg":
        claimed = store.reserve(Reserve(queues=["mail"], limit=1, worker="w1")).deliveries
        store.settle(Settle(items=[Settlement(delivery, Dead("failed")) for delivery in claimed]))


def paused_partition(place: Place) -> None:
    store = place.store()
    place.work(store)
    place.publish(store, count=2, partition="p")
    store.pause_partition("mail", "p", True)


def blocked_partition(place: Place) -> None:
    store = place.store()
    place.work(store)
    place.publish(store, count=2, partition="!x")
    (first,) = store.reserve(Reserve(queues=["mail"], limit=1, worker="w1")).deliveries
    store.settle(Settle(items=[Settlement(first, Defer(HOUR))]))


def block_that_is_over(place: Place) -> None:
    past = place.store(ago=HOUR)
    place.publish(past, count=2, partition="!x")
    (first,) = past.reserve(Reserve(queues=["mail"], limit=1, worker="w1")).deliveries
    past.settle(Settle(items=[Settlement(first, Defer(SECOND))]))
    place.work(place.store())


def lease_that_is_over(place: Place) -> None:
    past = place.store(ago=HOUR)
    place.publish(past)
    past.reserve(Reserve(queues=["mail"], limit=1, worker="gone"))


def due_and_not_in_line(place: Place) -> None:
    past = place.store(ago=HOUR)
    place.publish(past, run_after=60)
    place.work(place.store())


def dead_letters(place: Place) -> None:
    store = place.store()
    place.work(store)
    place.publish(store, count=100)
    claimed = store.reserve(Reserve(queues=["mail"], limit=100, worker="w1")).deliveries
    store.settle(Settle(items=[Settlement(delivery, Dead("failed")) for delivery in claimed]))


def settings_drift(place: Place) -> None:
    App("sqlite:///shop.db").queue("mail").configure(weight=7)


def timeout_in_threads(place: Place) -> None:
    place.work(place.store(), pool="threads")


def two_versions(place: Place) -> None:
    store = place.store()
    place.work(store)
    place.work(store, id="w2", version="2")


def silent_worker(place: Place) -> None:
    past = place.store(ago=21 * SECOND)
    place.work(past)


def tampered(column: str, value: str) -> Callable[[Place], None]:
    def tamper(place: Place) -> None:
        store = place.store()
        place.work(store)
        for number in range(3):
            place.publish(store, priority=number)
        place.sql(f"UPDATE taskmq_tasks SET {column}={value} WHERE priority=0")

    tamper.__name__ = f"tampered_{column}"
    return tamper


def short_lease_of_a_queue(place: Place) -> None:
    App("sqlite:///shop.db").queue("mail").configure(lease=1.0)


class Fault(NamedTuple):
    make: Callable[[Place], None]
    level: str
    check: str
    text: str
    fix: str
    url: str | None = URL
    """None: by the app."""


FAULTS = [
    Fault(nothing, "error", "store", "'nonsense' is not a store's URL", "correct what it names", "nonsense"),
    Fault(nothing, "error", "store", "the scheme must be one of", "correct what it names", "ftp://x"),
    Fault(nothing, "error", "store", "no module 'nosuch'", "correct what it names", "app nosuch"),
    Fault(newer_schema, "error", "store", "has schema 99, made by a newer taskmq", "correct"),
    Fault(no_database, "error", "store", "not a SQLite database", "correct"),
    Fault(no_directory, "error", "store", "directory of .* does not exist", "correct", "sqlite:///no/x.db"),
    Fault(old_library, "error", "store", "is too old; taskmq needs 3.37", "correct"),
    Fault(locked, "error", "store", "has been locked by another program", "end what locks it", f"{URL}?timeout=0"),
    Fault(
        nothing, "warning", "durability", "a power cut may lose the last", "leave .* out", f"{URL}?synchronous=normal"
    ),
    Fault(nothing, "error", "durability", "may lose everything", "leave .* out", f"{URL}?synchronous=off"),
    Fault(nothing, "warning", "durability", "no other process sees them", "use sqlite:///", "memory://"),
    Fault(no_permission, "error", "permissions", "shop.db cannot be written", "the user that the workers run as"),
    Fault(network_disk, "warning", "filesystem", r"network file system \(nfs4\)", "on a local disk"),
    Fault(little_room, "warning", "disk", "has 100 MiB left", "make room"),
    Fault(no_room, "error", "disk", "has 1 MiB left", "make room"),
    Fault(big_log, "warning", "wal", "shop.db-wal has 0 MiB", "end its transaction"),
    Fault(damaged_pages, "error", "integrity", "shop.db is damaged", "restore a backup"),
    Fault(wrong_clock_here, "warning", "clock", "this machine is 60 s ahead of", "set it by NTP"),
    Fault(wrong_clock_of_a_worker, "warning", "clock", "clock of worker w1 on h1 is 60 s behind", "set it by NTP"),
    Fault(wrong_clock_of_a_publisher, "warning", "clock", "the publisher of task 0.* was 60 s ahead", "by NTP"),
    Fault(store_clock_set_back, "error", "clock", "published 3,600 s in the future", "set the store's clock right"),
    Fault(unknown_handler, "error", "handlers", "2 unfinished .* shop.send, which no live worker", "deploy code"),
    Fault(handler_of_another_app, "warning", "handlers", "shop.gone, which this app does not know", "--handler", None),
    Fault(no_worker, "error", "workers", "3 tasks wait in queue mail, and no live worker", "--queues mail"),
    Fault(no_worker_later, "warning", "workers", "1 tasks of queue mail are due later", "--queues mail"),
    Fault(paused_queue, "warning", "paused", "queue mail is paused, and 3 tasks wait", "taskmq queue resume mail"),
    Fault(
        held_partitions,
        "error",
        "partitions",
        r"7 partitions \(!a, !b, !c, !d, !e, …\) of queue mail are .* 7 tasks",
        "--stopped",
    ),
    Fault(
        paused_partition,
        "warning",
        "partitions",
        "partition p of queue mail is paused, with 2 tasks",
        "partition resume",
    ),
    Fault(
        blocked_partition,
        "warning",
        "partitions",
        "!x of queue mail is blocked .* up to 3,[56][0-9]{2} s",
        "partition skip",
    ),
    Fault(
        block_that_is_over,
        "error",
        "housekeeping",
        "!x of queue mail is still .* although the time is over",
        "the workers' logs",
    ),
    Fault(lease_that_is_over, "error", "housekeeping", "1 tasks count as running", "start a worker"),
    Fault(due_and_not_in_line, "warning", "housekeeping", "1 tasks fell due up to 3,[0-9]+ s ago", "workers' logs"),
    Fault(dead_letters, "warning", "dead-letters", "100 dead letters lie in queue mail", "dead list --queue mail"),
    Fault(settings_drift, "warning", "settings", "mail: weight is 7 in the store and 3 in the app", "configure", None),
    Fault(short_lease_of_a_queue, "warning", "lease", "lease of queue mail is 1 s", "at least 5 s"),
    Fault(timeout_in_threads, "warning", "timeout", "shop.send has a timeout .* pool threads", "async def", None),
    Fault(two_versions, "warning", "versions", "different versions of taskmq: 1, 2", "upgrade"),
    Fault(silent_worker, "warning", "heartbeat", "w1 on h1 was last seen 2[1-9] s ago", "hangs"),
    *[
        Fault(tampered(column, value), "error", "content", "1 unfinished tasks have been changed", "mend the rows")
        for column, value in (
            ("body", "'{garbage'"),
            ("body", "7"),
            ("attempt_log", "'{garbage'"),
            ("tags", "5"),
        )
    ],
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.make.__name__}-{fault.check}")
def test_a_made_fault_is_found(taskmq: Taskmq, place: Place, fault: Fault) -> None:
    """Each made fault is found by ``app.doctor()`` and by ``taskmq doctor``, which fails exactly for errors."""
    Path("shop.py").write_text(SHOP)
    fault.make(place)
    app = "shop" if fault.url is None else fault.url.removeprefix("app ")
    words = ("--url", fault.url) if fault.url is not None and app == fault.url else (app,)
    forget_modules(Path.cwd())
    found = in_library(words)
    hits = [one for one in found if one.check == fault.check and re.search(fault.text, one.text)]
    assert [one.level for one in hits] == [fault.level], found
    assert re.search(fault.fix, hits[0].fix)
    follows = {"damaged_pages": {"store"}}.get(fault.make.__name__, set())
    assert [one for one in found if one.check not in {fault.check, "workers", *follows}] == [], "and nothing else"
    ran = taskmq("doctor", *words, "--json")
    told = [one for one in ran.json if one["check"] == fault.check and re.search(fault.text, one["text"])]
    assert [(one["level"], bool(re.search(fault.fix, one["fix"]))) for one in told] == [(fault.level, True)]
    assert (ran.code, ran.err) == (1 if any(one.level == "error" for one in found) else 0, "")


def in_library(words: tuple[str, ...]) -> list[Finding]:
    target = Target(url=words[1]) if len(words) == 2 else Target(app=words[0])
    try:
        app = open_app(target)
    except ConfigError as error:
        return [facts.unusable(error)]
    with app:
        return app.doctor()


def test_nothing_is_found_where_nothing_is_wrong(taskmq: Taskmq, place: Place) -> None:
    """A store with a live worker and a task or two is well: a line that says so, no JSON, exit code 0."""
    Path("shop.py").write_text(SHOP)
    store = place.store()
    place.work(store)
    place.publish(store, count=2, partition="p")
    ran = taskmq("doctor", "shop")
    assert (ran.code, ran.out, ran.err) == (0, "nothing is wrong, as far as can be seen from here\n", "")
    assert taskmq("doctor", "shop", "--json").out == ""


def test_errors_come_first(place: Place, taskmq: Taskmq) -> None:
    """The listing has what loses tasks, or keeps them from running, before what is only doubtful."""
    place.publish(place.store(), count=1)
    ran = taskmq("doctor", "--url", f"{URL}?synchronous=normal")
    assert [row[:2] for row in ran.table] == [["error", "workers"], ["warning", "durability"]]
    assert ran.code == 1


def test_it_leaves_nothing_behind(place: Place, taskmq: Taskmq) -> None:
    """Examining a store changes nothing in it."""
    place.store()
    taskmq("doctor", "--url", URL)
    with closing(sqlite3.connect("shop.db")) as connection:
        for table in ("locks", "queues", "tasks", "workers"):
            assert connection.execute(f"SELECT count(*) FROM taskmq_{table}").fetchone() == (0,)


def test_without_a_store_it_makes_none(taskmq: Taskmq, project: Path) -> None:
    """Where nothing names a store and there is none, doctor says so and makes no database."""
    ran = taskmq("doctor")
    assert (ran.code, ran.out) == (2, "")
    assert "no store to look at" in ran.err
    assert os.listdir() == []


def test_the_app_may_be_given_once(taskmq: Taskmq, project: Path) -> None:
    """An app as argument and as --app is a usage error."""
    ran = taskmq("doctor", "shop", "--app", "shop")
    assert (ran.code, "given twice" in ran.err) == (2, True)


def test_a_short_lease_of_the_app_is_found() -> None:
    """An app whose own lease is shorter than a pause that is to be expected is warned."""
    with App(Config(url="memory://", lease=1.0)) as app:
        assert [(one.check, one.level) for one in examine(app)][1:] == [("lease", "warning")]


def test_a_late_moment_is_published_as_it_is(place: Place) -> None:
    """A delayed task is no sign of a wrong clock."""
    store = place.store()
    place.work(store)
    message = Message(
        id=f"{store.now() // 1000:012x}7" + "0" * 19,
        queue="mail",
        handler="shop.send",
        body=b"{}",
        run_after=Moment(HOUR, relative=True),
    )
    store.publish(Publish(messages=[message]))
    with App(URL) as app:
        assert app.doctor() == []
