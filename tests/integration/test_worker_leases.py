"""What a worker does with its leases: marks, heartbeats, cancels, and being fenced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from taskmq import App, QueueConfig, Retry, TaskState, current
from taskmq.outcome import Ack
from taskmq.testing.clock import FakeClock
from taskmq.testing.faulty import Faulty
from taskmq.testing.signals import Gate, Record
from taskmq.transport.base import Maintain, Reserve, Settle, Settlement

MakeSite = Callable[..., Any]
POOLS = pytest.mark.parametrize("pool", ["threads", "solo", "asyncio"])


def beats(faulty: Faulty, count: int) -> None:
    """Wait for so many heartbeats that extended something."""
    faulty.calls.wait_until(lambda _: len(faulty.answered("extend")) >= count, f"{count} heartbeats")


@POOLS
def test_a_last_attempt_is_marked_started_before_its_handler_runs(site: MakeSite, pool: str) -> None:
    """With max_attempts=1 the store knows of the start before the handler does anything."""
    app: App = site().app
    seen: list[bool] = []

    @app.task(retry=Retry(max_attempts=1))
    def once() -> None:
        seen.append(app.get(current().task_id).started_at is not None)

    app.enqueue_many([once.message() for _ in range(20)])
    with app.worker(pool=pool, prefetch=8) as worker:
        assert worker.drain(10)
    assert seen == [True] * 20


def test_only_what_starts_is_marked(site: MakeSite) -> None:
    """Last attempts that wait behind a running one are not marked: a crash must not be blamed on them."""
    one = site()
    app: App = one.app
    gate = Gate()

    @app.task(retry=Retry(max_attempts=1))
    def once() -> None:
        gate.pass_through()

    handles = app.enqueue_many([once.message() for _ in range(3)])
    with app.worker(concurrency=1, prefetch=8) as worker:
        gate.arrivals.wait()
        assert [app.get(handle.id).started_at is not None for handle in handles] == [True, False, False]
        assert [task.state for task in map(app.get, [handle.id for handle in handles])] == [TaskState.RUNNING] * 3
        gate.open()
        assert worker.drain(10)


@POOLS
def test_a_last_attempt_that_is_cancelled_before_its_start_is_marked_once_at_most(site: MakeSite, pool: str) -> None:
    """The store's refusal to let a last attempt start is final: it goes back, and the store is not asked again."""
    one = site()
    app: App = one.app
    gate = Gate()
    ran: list[int] = []

    @app.task
    def work() -> None:
        gate.pass_through()

    @app.task(retry=Retry(max_attempts=1))
    def once() -> None:
        ran.append(1)

    work.enqueue()
    held = once.enqueue()
    with app.worker(pool=pool, concurrency=1, prefetch=8) as worker:
        gate.arrivals.wait()
        app.store.cancel([held.id])
        gate.open()
        assert worker.drain(10)
    marks = [
        item
        for call in one.faulty.answered("extend")
        for item in call.params[0].items
        if item.started and item.delivery.id == held.id
    ]
    assert len(marks) <= 1
    assert not ran
    assert app.get(held.id).state is TaskState.CANCELLED


def test_an_earlier_attempt_costs_no_extra_call(site: MakeSite) -> None:
    """A task with attempts left starts without telling the store first."""
    one = site()
    app: App = one.app

    @app.task(retry=Retry(max_attempts=2))
    def work() -> None:
        pass

    app.enqueue_many([work.message() for _ in range(20)])
    with app.worker() as worker:
        assert worker.drain(10)
    assert one.faulty.answered("extend") == []


@POOLS
def test_heartbeats_keep_the_lease_of_a_long_task(site: MakeSite, pool: str) -> None:
    """A task that runs for several leases keeps its lease, held ones behind it too, and none is claimed twice."""
    one = site(lease=0.2)
    app: App = one.app
    gate = Gate()

    @app.task
    def long() -> None:
        gate.pass_through()

    handles = app.enqueue_many([long.message() for _ in range(2)])
    options = {} if pool == "solo" else {"concurrency": 1}
    with app.worker(pool=pool, prefetch=1, **options) as worker:
        gate.arrivals.wait()
        beats(one.faulty, 9)
        app.store.maintain(Maintain())
        assert app.store.reserve(Reserve(queues=("default",), limit=5, worker="other")).deliveries == []
        gate.open()
        assert worker.drain(10)
    assert [app.get(handle.id).epoch for handle in handles] == [1, 1]
    assert [app.get(handle.id).attempt for handle in handles] == [1, 1]


def test_a_slow_maintenance_round_delays_no_heartbeat(site: MakeSite) -> None:
    """Leases are renewed although the store is busy with its housekeeping for long."""
    one = site(lease=0.2)
    app: App = one.app
    gate = Gate()

    @app.task
    def long() -> None:
        gate.pass_through()

    handle = long.enqueue()
    one.faulty.hang("maintain")
    with app.worker() as worker:
        gate.arrivals.wait()
        one.faulty.faults.wait()
        beats(one.faulty, len(one.faulty.answered("extend")) + 5)
        gate.open()
        assert worker.drain(10)
        one.faulty.heal()
    assert app.get(handle.id).epoch == 1


def test_a_handler_in_a_thread_is_told_when_its_timeout_is_over(site: MakeSite) -> None:
    """Nothing can end a thread, so a handler that runs longer than its timeout sees ``cancelled``."""
    app: App = site().app
    saw = Record[bool]()
    pause = threading.Lock()
    pause.acquire()

    @app.task(timeout=0.01)
    def slow() -> None:
        for _ in range(2000):
            if current().cancelled:
                break
            pause.acquire(timeout=0.005)
        saw.add(current().cancelled)

    slow.enqueue()
    with app.worker():
        assert saw.wait() == [True]


def test_heartbeats_name_the_started_ones(site: MakeSite) -> None:
    """The store learns which deliveries are running and which only wait."""
    one = site(lease=0.2)
    app: App = one.app
    gate = Gate()

    @app.task
    def long() -> None:
        gate.pass_through()

    handles = app.enqueue_many([long.message() for _ in range(2)])
    with app.worker(concurrency=1, prefetch=1) as worker:
        gate.arrivals.wait()
        before = len(one.faulty.answered("extend"))
        beats(one.faulty, before + 2)
        last = one.faulty.answered("extend")[-1].params[0]
        gate.open()
        assert worker.drain(10)
    assert {item.delivery.id: item.started for item in last.items} == {handles[0].id: True, handles[1].id: False}


def test_a_short_lease_of_one_queue_quickens_the_heart(site: MakeSite) -> None:
    """The heart beats three times in the shortest lease in hand, not in the app's."""
    one = site(lease=3600, queues={"quick": QueueConfig(lease=0.2)})
    app: App = one.app
    gate = Gate()

    @app.task(queue="quick")
    def long() -> None:
        gate.pass_through()

    long.enqueue()
    with app.worker() as worker:
        gate.arrivals.wait()
        beats(one.faulty, 3)
        gate.open()
        assert worker.drain(10)


@POOLS
def test_a_cancel_reaches_a_running_handler(site: MakeSite, pool: str) -> None:
    """A handler that is cancelled while it runs sees it in its context, and the task ends CANCELLED."""
    app: App = site(lease=0.2).app
    arrivals, saw = Record[str](), Record[bool]()

    @app.task
    def patient() -> None:
        arrivals.add("here")
        for _ in range(2000):
            if current().cancelled:
                break
            pause.acquire(timeout=0.005)
        saw.add(current().cancelled)
        raise ValueError("stopped half-way")

    pause = threading.Lock()
    pause.acquire()
    handle = patient.enqueue()
    with app.worker(pool=pool) as worker:
        arrivals.wait()
        app.store.cancel([handle.id])
        assert saw.wait() == [True]
        assert worker.drain(10)
    assert app.get(handle.id).state is TaskState.CANCELLED


def test_a_held_task_that_is_cancelled_never_starts(site: MakeSite) -> None:
    """A task cancelled while a worker holds it is not started, and ends CANCELLED."""
    one = site(lease=0.2)
    app: App = one.app
    gate = Gate()

    @app.task
    def work() -> None:
        gate.pass_through()

    handles = app.enqueue_many([work.message() for _ in range(2)])
    with app.worker(concurrency=1, prefetch=1) as worker:
        gate.arrivals.wait()
        app.store.cancel([handles[1].id])
        before = len(one.faulty.answered("extend"))
        beats(one.faulty, before + 2)
        gate.open()
        assert worker.drain(10)
    assert len(gate.arrivals.items) == 1
    assert [app.get(handle.id).state for handle in handles] == [TaskState.SUCCEEDED, TaskState.CANCELLED]


def test_a_worker_whose_lease_is_lost_is_fenced(
    site: MakeSite, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A result that comes after the task has moved on changes nothing; it is logged as LeaseLost and counted."""
    one = site(clock)
    app: App = one.app
    gate = Gate()

    @app.task
    def slow() -> str:
        gate.pass_through()
        return "too late"

    handle = slow.enqueue()
    with app.worker(concurrency=1, prefetch=0) as worker, caplog.at_level(logging.WARNING):
        gate.arrivals.wait()
        clock.advance(31)
        (other,) = app.store.reserve(Reserve(queues=("default",), limit=5, worker="other")).deliveries
        assert other.epoch == 2
        gate.open()
        assert worker.drain(10)
        assert app.get(handle.id).state is TaskState.RUNNING
        assert app.store.settle(Settle(items=[Settlement(other, Ack(b'"in time"'))])) == [True]
    assert app.get(handle.id).result == "in time"
    assert "LeaseLost" in caplog.text
    assert (worker.stats.lost, worker.stats.succeeded) == (1, 0)


def test_a_heartbeat_that_finds_a_lease_lost_tells_the_handler(site: MakeSite, clock: FakeClock) -> None:
    """A running handler whose lease is lost sees ``cancelled``; a held one is never started."""
    one = site(clock, lease=0.2)
    app: App = one.app
    gate, saw = Gate(), Record[bool]()

    @app.task
    def slow() -> None:
        gate.pass_through()
        saw.add(current().cancelled)

    app.enqueue_many([slow.message() for _ in range(2)])
    with app.worker(concurrency=1, prefetch=1, name="mine"):
        gate.arrivals.wait()
        clock.advance(1)
        others = app.store.reserve(Reserve(queues=("default",), limit=5, worker="other", lease=10**12)).deliveries
        assert len(others) == 2
        before = len(one.faulty.answered("extend"))
        beats(one.faulty, before + 2)
        gate.open()
        assert saw.wait() == [True]
    assert len(gate.arrivals.items) == 1


def test_the_worker_is_listed_while_it_lives(site: MakeSite) -> None:
    """A worker has its row in the store from its start to its end."""
    one = site()
    app: App = one.app

    @app.task(queue="mail")
    def work() -> None:
        pass

    with app.worker(concurrency=3, name="w-1"):
        one.faulty.calls.wait_until(lambda _: one.faulty.answered("heartbeat"), "the first heartbeat")
        (row,) = app.store.workers()
        assert (row.id, row.queues, row.pool, row.concurrency) == ("w-1", ("mail",), "threads", 3)
        assert row.handlers == (work.name,)
    assert app.store.workers() == []
