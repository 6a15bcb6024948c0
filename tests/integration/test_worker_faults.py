"""A worker whose store fails, and a worker that fails itself."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from taskmq import App, Retry, TaskState, TransportError
from taskmq.testing.signals import Gate, Record

MakeSite = Callable[..., Any]
POOLS = pytest.mark.parametrize("pool", ["threads", "solo", "asyncio"])
EVERYTHING = (
    "reserve",
    "settle",
    "settle_and_reserve",
    "extend",
    "wait",
    "maintain",
    "lock",
    "heartbeat",
    "configure_queues",
)


@POOLS
def test_work_goes_on_after_the_store_is_back(site: MakeSite, pool: str) -> None:
    """While the store fails, ended tasks are kept; afterwards each is settled once and the rest runs, within 5 s."""
    one = site()
    app: App = one.app
    gate, ran = Gate(), Counter[int]()

    @app.task
    def work(number: int) -> None:
        if number == 0:
            gate.pass_through()
        ran[number] += 1

    handles = app.enqueue_many([work.message(number) for number in range(50)])
    with app.worker(pool=pool) as worker:
        gate.arrivals.wait()
        one.faulty.fail(*EVERYTHING)
        gate.open()
        one.faulty.faults.wait_until(lambda verbs: sum(verb.startswith("settle") for verb in verbs) >= 4, "four tries")
        one.faulty.heal()
        back = monotonic()
        assert worker.drain(10)
        assert monotonic() - back < 5
    assert ran == dict.fromkeys(range(50), 1)
    assert {app.get(handle.id).state for handle in handles} == {TaskState.SUCCEEDED}
    assert worker.stats.succeeded == 50


def test_a_worker_starts_while_the_store_fails(site: MakeSite) -> None:
    """A store that is down at the start is waited for."""
    one = site()
    app: App = one.app
    ran = Record[int]()

    @app.task
    def work() -> None:
        ran.add(1)

    work.enqueue()
    one.faulty.fail(*EVERYTHING)
    with app.worker() as worker:
        one.faulty.faults.wait_until(lambda verbs: verbs.count("reserve") >= 2, "two tries")
        one.faulty.heal()
        assert worker.drain(10)
    assert ran.items == [1]


def test_a_lost_answer_is_no_second_run_and_no_alarm(site: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    """A settle that was applied while its answer was lost is sent again, harmlessly."""
    one = site()
    app: App = one.app
    gate, ran = Gate(), Counter[int]()

    @app.task
    def work(number: int) -> None:
        gate.pass_through()
        ran[number] += 1

    handles = app.enqueue_many([work.message(number) for number in range(3)])
    with app.worker(concurrency=3) as worker, caplog.at_level(logging.WARNING):
        gate.arrivals.wait(3)
        one.faulty.lose_answers("settle", "settle_and_reserve")
        gate.open()
        one.faulty.faults.wait(2)
        one.faulty.heal()
        assert worker.drain(10)
    assert ran == dict.fromkeys(range(3), 1)
    assert {app.get(handle.id).state for handle in handles} == {TaskState.SUCCEEDED}
    assert "LeaseLost" not in caplog.text


def test_a_last_attempt_is_not_started_while_the_store_cannot_be_told(site: MakeSite) -> None:
    """A failing mark is tried again, and the handler runs only after it has succeeded."""
    one = site()
    app: App = one.app
    ran = Record[int]()

    @app.task(retry=Retry(max_attempts=1))
    def once() -> None:
        ran.add(1)

    one.faulty.fail("extend")
    once.enqueue()
    with app.worker() as worker:
        one.faulty.faults.wait(2)
        assert ran.items == []
        one.faulty.heal()
        assert worker.drain(10)
    assert ran.items == [1]


def bug() -> BaseException:
    return ZeroDivisionError("a fault of ours")


@POOLS
@pytest.mark.parametrize("verb", ["reserve", "wait", "heartbeat", "lock"])
def test_a_programming_error_stops_the_whole_worker(
    site: MakeSite, verb: str, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    """When one of its threads dies the worker says why and stops; join raises it."""
    one = site()
    app: App = one.app

    @app.task
    def work() -> None:
        pass

    one.faulty.fail(verb, error=bug)
    worker = app.worker(pool=pool, grace=0)
    worker.start()
    with pytest.raises(ZeroDivisionError):
        worker.join(10)
    with pytest.raises(ZeroDivisionError):
        worker.drain(10)
    assert "died; the worker stops" in caplog.text
    assert "a fault of ours" in caplog.text


def test_the_exit_code_tells_that_a_thread_has_died(site: MakeSite) -> None:
    """``run`` returns 1 when a thread of the worker has died."""
    one = site()
    app: App = one.app

    @app.task
    def work() -> None:
        pass

    one.faulty.fail("wait", error=bug)
    assert app.worker().run() == 1


def test_what_was_running_is_settled_although_the_heartbeat_died(site: MakeSite) -> None:
    """A worker that stops because a thread has died still settles what ends within its leases."""
    one = site(lease=1.5)
    app: App = one.app
    gate = Gate()

    @app.task
    def work() -> str:
        gate.pass_through()
        return "done"

    handle = work.enqueue()
    worker = app.worker()
    worker.start()
    gate.arrivals.wait()
    one.faulty.fail("extend", error=bug)
    one.faulty.faults.wait()
    gate.open()
    with pytest.raises(ZeroDivisionError):
        worker.join(10)
    assert app.get(handle.id).result == "done"


def test_a_closed_store_does_not_hold_up_the_end(site: MakeSite) -> None:
    """An app that is closed under its worker costs the outcomes, not the grace."""
    app: App = site().app
    gate = Gate()

    @app.task
    def work() -> None:
        gate.pass_through()

    work.enqueue()
    worker = app.worker(concurrency=1, grace=60)
    worker.start()
    gate.arrivals.wait()
    app.close()
    gate.open()
    began = monotonic()
    worker.stop()
    assert monotonic() - began < 10
    with pytest.raises(TransportError):
        _ = app.store
