"""Which task starts next inside a worker: priority, aging, runs, and what goes back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from taskmq import App, QueueConfig, Retry, current
from taskmq.outcome import Ack, Yield
from taskmq.testing.clock import FakeClock
from taskmq.testing.faulty import Call, Faulty
from taskmq.testing.signals import Gate, Record
from taskmq.transport.base import Find, Reserve, Settlement

MakeSite = Callable[..., Any]
POOLS = pytest.mark.parametrize("pool", ["threads", "solo", "asyncio"])


def settled(faulty: Faulty, kind: type) -> list[Settlement]:
    """Everything of this kind that was settled, in order."""
    return [
        item
        for call in faulty.calls.items
        if call.verb in ("settle", "settle_and_reserve")
        for item in call.params[0].items
        if type(item.outcome) is kind
    ]


def claimed(calls: list[Call]) -> int:
    """How many deliveries these calls have brought."""
    count = 0
    for call in calls:
        if call.verb == "reserve":
            count += len(call.answer.deliveries)
        elif call.verb == "settle_and_reserve":
            count += len(call.answer[1].deliveries)
    return count


@POOLS
@pytest.mark.parametrize(
    ("order", "first"), [("aging", ["old", "fresh"]), ("strict", ["fresh", "old"])], ids=["aging", "strict"]
)
def test_an_old_task_of_an_aging_queue_starts_before_a_fresh_urgent_one(
    site: MakeSite, clock: FakeClock, pool: str, order: str, first: list[str]
) -> None:
    """In an aging queue, 271 s of waiting beat nine levels of priority, inside the worker too."""
    app: App = site(clock, queues={"q": QueueConfig(order=order, aging_step=30.0)}).app
    started: list[str] = []

    @app.task(queue="q")
    def note(name: str) -> None:
        started.append(name)

    note.using(priority=0).enqueue("old")
    clock.advance(271)
    note.using(priority=9).enqueue("fresh")
    options = {} if pool == "solo" else {"concurrency": 1}
    with app.worker(pool=pool, prefetch=16, **options) as worker:
        assert worker.drain(10)
    assert started == first


def test_aging_order_holds_among_many_held_tasks(site: MakeSite, clock: FakeClock) -> None:
    """One thread with prefetch 16 starts an aging queue's tasks in the order of the claim rule."""
    app: App = site(clock, queues={"q": QueueConfig(order="aging", aging_step=30.0)}).app
    started: list[tuple[int, int]] = []

    @app.task(queue="q")
    def note(age: int, priority: int) -> None:
        started.append((age, priority))

    tasks = [(age, priority) for age in (300, 200, 100, 0) for priority in (0, 4, 9)]
    for age in (300, 200, 100, 0):
        for priority in (0, 4, 9):
            note.using(priority=priority).enqueue(age, priority)
        clock.advance(100)
    with app.worker(concurrency=1, prefetch=16) as worker:
        assert worker.drain(10)
    assert started == sorted(tasks, key=lambda task: -task[0] - 30 * task[1])


def test_an_urgent_task_overtakes_held_ones(site: MakeSite) -> None:
    """A priority 9 that arrives while the worker is busy starts before everything the worker holds."""
    one = site()
    app: App = one.app
    gate, started = Gate(), Record[str]()

    @app.task
    def note(name: str) -> None:
        if name == "first":
            gate.pass_through()
        started.add(name)

    app.enqueue_many([note.message(name) for name in ("first", "a", "b", "c")])
    with app.worker(concurrency=1, prefetch=8) as worker:
        gate.arrivals.wait()
        note.using(priority=9).enqueue("urgent")
        one.faulty.calls.wait_until(lambda calls: claimed(calls) == 5, "the claim of the urgent task")
        gate.open()
        assert worker.drain(10)
    assert started.items == ["first", "urgent", "a", "b", "c"]


@POOLS
def test_held_tasks_go_back_from_behind_a_long_one(site: MakeSite, pool: str) -> None:
    """What is held longer than 20 ms behind a long task goes back, last first, and others get it in order."""
    one = site()
    app: App = one.app
    gate = Gate()

    @app.task
    def work(number: int) -> None:
        if number == 0:
            gate.pass_through()

    options = {} if pool == "solo" else {"concurrency": 1}
    with app.worker(pool=pool, **options) as worker:
        worker._settling.run_time = 0.0001  # as if many short ones had run: the worker is bold
        first, *others = app.enqueue_many([work.message(number) for number in range(11)])
        held = [handle.id for handle in others]
        gate.arrivals.wait()
        one.faulty.calls.wait_until(lambda _: len(settled(one.faulty, Yield)) >= 10, "ten hand-backs")
        # On a very busy machine even the first may go back once, before its thread has come to start it.
        back = [item.delivery.id for item in settled(one.faulty, Yield) if item.delivery.id != first.id]
        assert back == held[::-1]
        other = app.store.reserve(Reserve(queues=("default",), limit=20, worker="other"))
        assert [delivery.id for delivery in other.deliveries] == held
        assert all(delivery.attempt == 1 for delivery in other.deliveries)
        gate.open()
        first.result(timeout=10)


def test_a_fixed_prefetch_keeps_what_it_holds(site: MakeSite) -> None:
    """prefetch=N hands nothing back by the clock."""
    one = site(lease=0.2)
    app: App = one.app
    gate = Gate()

    @app.task
    def work(number: int) -> None:
        if number == 0:
            gate.pass_through()

    app.enqueue_many([work.message(number) for number in range(6)])
    with app.worker(concurrency=1, prefetch=5) as worker:
        gate.arrivals.wait()
        # Two heartbeats are further apart than a job may be held with prefetch="auto".
        one.faulty.calls.wait_until(lambda _: len(one.faulty.answered("extend")) >= 2, "two heartbeats")
        gate.open()
        assert worker.drain(10)
    assert settled(one.faulty, Yield) == []


@POOLS
def test_ordered_partitions_run_in_publish_order(site: MakeSite, pool: str) -> None:
    """Tasks of each ordered partition start in publish order, one at a time, with many threads and prefetch."""
    app: App = site().app
    order: dict[str, list[int]] = defaultdict(list)
    running: dict[str, int] = defaultdict(int)
    most = Record[int]()

    @app.task
    def note(code: str, number: int) -> None:
        running[code] += 1
        most.add(running[code])
        order[code].append(number)
        running[code] -= 1

    codes = ["a", "b", "c"]
    app.enqueue_many([note.using(ordered_by=code).message(code, n) for n in range(100) for code in codes])
    options = {} if pool == "solo" else {"concurrency": 8}
    with app.worker(pool=pool, prefetch=64, **options) as worker:
        assert worker.drain(20)
    assert all(order[code] == list(range(100)) for code in codes)
    assert max(most.items) == 1


@POOLS
def test_a_failing_head_runs_again_before_its_followers(site: MakeSite, pool: str) -> None:
    """A fails twice, then B and C: executes A, A, A, B, C, and the rest of the run consumes no attempt."""
    app: App = site().app
    started: list[tuple[str, int]] = []

    @app.task(retry=Retry(max_attempts=3, base=0))
    def note(name: str) -> None:
        attempt = current().attempt
        started.append((name, attempt))
        if name == "A" and attempt < 3:
            raise ValueError("not yet")

    app.enqueue_many([note.using(ordered_by="x").message(name) for name in "ABC"])
    options = {} if pool == "solo" else {"concurrency": 4}
    with app.worker(pool=pool, prefetch=16, **options) as worker:
        assert worker.drain(10)
    assert started == [("A", 1), ("A", 2), ("A", 3), ("B", 1), ("C", 1)]


def test_the_rest_of_a_run_goes_back_in_the_settle_of_its_failed_head(site: MakeSite) -> None:
    """A retried head and the not-started rest of its run travel in one settle, the rest last first."""
    one = site()
    app: App = one.app

    @app.task(retry=Retry(max_attempts=3, base=3600, jitter=False))
    def fail(name: str) -> None:
        raise ValueError(name)

    handles = app.enqueue_many([fail.using(ordered_by="x").message(name) for name in "ABC"])
    with app.worker(concurrency=2, prefetch=16) as worker:
        assert worker.drain(10)
    batches = [call.params[0].items for call in one.faulty.calls.items if call.verb.startswith("settle")]
    ended = next(items for items in batches if items)
    assert [(item.delivery.id, type(item.outcome).__name__) for item in ended] == [
        (handles[0].id, "Retry"),
        (handles[2].id, "Yield"),
        (handles[1].id, "Yield"),
    ]
    assert settled(one.faulty, Ack) == []
    waiting = app.store.find(Find(partition="!x")).tasks
    assert sorted(task.attempt for task in waiting) == [0, 0, 1]


def test_sixteen_threads_take_sixteen_heads(site: MakeSite) -> None:
    """Runs fill only what would stay empty: with 16 partitions and 16 threads, all partitions run at once."""
    app: App = site().app
    gate = Gate()

    @app.task
    def work(code: str) -> None:
        gate.pass_through(code)

    app.enqueue_many([work.using(ordered_by=f"p{n % 16}").message(f"p{n % 16}") for n in range(64)])
    with app.worker(concurrency=16, prefetch=0) as worker:
        together = gate.arrivals.wait(16)
        gate.open()
        assert worker.drain(10)
    assert len(set(together)) == 16
