"""A database that goes away, fills up or is held by others: nothing lost, nothing doubled, and the work goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from taskmq import App, Config
from taskmq.codec import Envelope, encode
from taskmq.errors import OutcomeUnknown, StoreFull, TransportError, TransportUnavailable
from taskmq.message import Message
from taskmq.transport.base import Finding, Publish, Store, WorkerInfo
from taskmq.transport.registry import open_schema, open_store
from tests.sql.help import acknowledge, claim, message, publish, work_off
from tests.sql.sides import Mariadb, Postgres, Side, lost_commit, own, shared, until

BOTH = ["postgresql", "mariadb"]
RECOVERY = 5.0
"""Seconds after which the work must go on."""


@pytest.fixture(params=BOTH)
def side(request: pytest.FixtureRequest) -> Side:
    return shared(request.param)


@pytest.fixture(params=BOTH)
def apart(request: pytest.FixtureRequest) -> Side:
    """A server that the test may stop."""
    return own(request.param)


# ── goes away ──


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_a_restart_is_survived(apart: Side, crash: bool) -> None:
    """What was answered is there, what is held can be settled, and the next verb simply works."""
    store = open_store(apart.url(apart.place()))
    receipts = publish(store, 20)
    held = claim(store, 5)
    apart.restart(crash=crash)
    assert all(acknowledge(store, held))
    receipts += publish(store, 5)
    assert {delivery.id for delivery in held} | set(work_off(store)) == {receipt.id for receipt in receipts}
    store.close()


def test_a_server_that_is_down_is_an_outage(apart: Side) -> None:
    """At once, as an error that may be over soon; and then it is."""
    store = open_store(apart.url(apart.place()))
    publish(store)
    apart.halt()
    with pytest.raises(TransportUnavailable):
        publish(store)
    apart.start()
    publish(store)
    assert len(work_off(store)) == 2
    store.close()


def test_a_worker_goes_on_after_kills_and_a_crash(apart: Side) -> None:
    """While it works its sessions are ended, then the server crashes: what comes next is done within five seconds."""
    app = App(Config(url=apart.url(place := apart.place()), lease=0.5))

    @app.task(queue="q")
    def work(n: int) -> int:
        return n

    with closing(app), app.worker(queues=["q"], concurrency=4):
        handles = [work.enqueue(n) for n in range(30)]
        for number in range(6):
            apart.kill_sessions(place, 2)
            with _patience():
                handles.append(work.enqueue(100 + number))
        apart.restart(crash=True)
        began = time.monotonic()
        assert work.enqueue(7).result(timeout=RECOVERY) == 7
        assert time.monotonic() - began < RECOVERY
        assert sorted(handle.result(timeout=RECOVERY) for handle in handles)[:30] == list(range(30))


@contextmanager
def _patience() -> Iterator[None]:
    """An outage is an answer."""
    try:
        yield
    except TransportError:
        pass


def test_sessions_that_are_ended_under_load_cost_nothing(side: Side) -> None:
    """Somebody ends sessions while threads publish and work: each task is done once, none is lost."""
    store = open_store(side.url(place := side.place()))
    stop = threading.Event()
    published: list[str] = []
    done: list[str] = []

    def producer() -> None:
        while not stop.is_set():
            batch = [message() for _ in range(3)]
            with _patience():
                store.publish(Publish(messages=batch))
                published.extend(task.id for task in batch)

    def worker() -> None:
        while not stop.is_set():
            with _patience():
                held = claim(store, 5)
                results = acknowledge(store, held)
                done.extend(delivery.id for delivery, accepted in zip(held, results, strict=True) if accepted)

    threads = [threading.Thread(target=role) for role in (producer, producer, worker, worker)]
    for thread in threads:
        thread.start()
    for _ in range(12):
        before = len(done)
        side.kill_sessions(place, 2)
        until(lambda before=before: len(done) > before, "the work does not go on", RECOVERY)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done))
    assert {info.id for info in store.get(published) if info is not None} == set(published)
    store.close()


def test_a_lost_answer_to_a_publish_is_asked_for_again(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """COMMIT has happened, its answer is lost: the task is there once, and its receipt is that of a new one."""
    store = open_store(side.url(side.place()))
    with lost_commit(side, monkeypatch):
        (receipt,) = publish(store)
    assert not receipt.duplicate
    assert work_off(store) == {receipt.id: 1}
    store.close()


def test_a_lost_answer_to_a_claim_or_a_settlement_is_unknown(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows who has the tasks: their leases will end. A settlement is not applied twice."""
    store = open_store(side.url(side.place()))
    publish(store, 3)
    with lost_commit(side, monkeypatch), pytest.raises(OutcomeUnknown):
        claim(store, 2)
    held = claim(store, 3)
    assert len(held) == 1
    with lost_commit(side, monkeypatch), pytest.raises(OutcomeUnknown):
        acknowledge(store, held)
    assert acknowledge(store, held) == [False]
    assert store.get([held[0].id])[0] is not None
    store.close()


# ── meets others ──


def test_a_transaction_that_meets_others_is_run_again(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few times, and then the error says that nothing was stored."""
    store = open_store(side.url(side.place()))
    publish(store)
    commit, failures = side.session.commit, [3]

    def fail(session: object) -> None:
        if failures[0]:
            failures[0] -= 1
            raise side.deadlock
        commit(session)

    monkeypatch.setattr(side.session, "commit", fail)
    publish(store)
    failures[0] = 1000
    with pytest.raises(TransportUnavailable, match="nothing was stored"):
        publish(store)
    failures[0] = 0
    assert len(work_off(store)) == 2
    store.close()


def test_a_real_deadlock_is_run_again(side: Side) -> None:
    """Another program locks our queues in the wrong order: ours is undone and run again, and the publish is done."""
    place = side.place()
    store = open_store(side.url(place))
    publish(store, queue="a"), publish(store, queue="b")
    batch = [message("a", "!1"), message("b", "!1")]
    with side.connect(place) as other:
        for number in range(20):  # whoever has written more is not the one that is undone
            other.execute(f"INSERT INTO taskmq_locks(name, owner, expires_at) VALUES ('other{number}', 'x', 0)")
        other.execute("SELECT 1 FROM taskmq_queues WHERE name='b' FOR UPDATE")
        thread = threading.Thread(target=store.publish, args=(Publish(messages=batch),))
        thread.start()
        until(side.somebody_waits, "the publish does not wait")
        other.execute("SELECT 1 FROM taskmq_queues WHERE name='a' FOR UPDATE")
        other.commit()
        thread.join(20)
    assert all(info is not None for info in store.get([task.id for task in batch]))
    store.close()


def test_heartbeats_go_on_when_all_connections_are_busy(side: Side) -> None:
    """Who finds none in time gets a clear error; what keeps leases alive has a connection of its own."""
    place = side.place()
    store = open_store(side.url(place, pool="1", timeout="0.2"))
    publish(store)
    with side.connect(place) as other:
        other.execute("SELECT 1 FROM taskmq_queues FOR UPDATE")
        stuck = threading.Thread(target=claim, args=(store,))
        stuck.start()
        until(side.somebody_waits, "the claim does not wait")
        began = time.monotonic()
        with pytest.raises(TransportUnavailable, match="pool="):
            publish(store, queue="other")
        assert time.monotonic() - began < 2
        info = WorkerInfo(id="w", host="h", pid=1, queues=["q"], pool="solo", concurrency=1, version="1", started_at=0)
        store.heartbeat(info, 60_000_000)
        assert [worker.id for worker in store.workers()] == ["w"]
    stuck.join()
    store.close()


@pytest.mark.parametrize("held", ["SELECT count(*) FROM taskmq_tasks", "UPDATE taskmq_schema SET version=version"])
def test_a_transaction_that_was_left_open_is_named(side: Side, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has left it, for how long, and how to end it; whether it has read or written."""
    place = side.place()
    store = open_store(side.url(place))
    side.hurry(monkeypatch)
    with side.connect(place) as other:
        if "SELECT" in held:
            other.execute("ROLLBACK")
            other.execute(
                "START TRANSACTION ISOLATION LEVEL REPEATABLE READ" if isinstance(side, Postgres) else "BEGIN"
            )
        other.execute(held)
        until(lambda: _old(store), "it is not seen")  # a session that was killed before may be seen a moment longer
        (finding,) = _old(store)
    assert "has been open for" in finding.text
    assert "end it: " in finding.fix
    store.close()


def _old(store: Store) -> list[Finding]:
    whose = ("root", "postgres")
    return [one for one in store.checkup() if one.check == "snapshot" and any(name in one.text for name in whose)]


# ── fills up ──


def test_a_full_disk_refuses_publishes_whole_and_loses_nothing(apart: Side) -> None:
    """A publish that finds no room stores nothing and says so; with room again all that was accepted is done.

    Mounting a small disk is not everybody's right, so the server is kept from growing: PostgreSQL by the largest file
    that the kernel lets it write, MariaDB by the largest size of its tablespace.
    """
    apart.halt()
    if isinstance(apart, Postgres):
        apart.server.start(largest_file=20 << 20)
    else:
        assert isinstance(apart, Mariadb)
        grown = (Path(apart.server.folder, "data", "ibdata1").stat().st_size >> 20) + 20
        largest = f"--innodb-data-file-path=ibdata1:12M:autoextend:max:{grown}M"
        apart.server.start("--innodb-file-per-table=0", largest)
    url = apart.url(apart.bare())
    open_schema(url).up()
    accepted: set[str] = set()
    store = open_store(url)
    with pytest.raises(StoreFull, match="nothing was stored"):
        _fill(store, accepted)
    assert store.stats(["q"])[0].ready == len(accepted) > 0
    store.close()
    apart.restart(crash=False)
    store = open_store(url)
    assert set(work_off(store)) == accepted
    store.close()


def _fill(store: Store, accepted: set[str]) -> None:
    while True:
        batch = [_large() for _ in range(4)]
        store.publish(Publish(messages=batch))
        accepted.update(task.id for task in batch)


def _large() -> Message:
    """A task of 200 KB that cannot be compressed."""
    body = encode(Envelope(args=msgspec.Raw(b'["' + os.urandom(100_000).hex().encode() + b'"]')))
    return replace(message(), body=body)
