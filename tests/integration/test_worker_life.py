"""Options, start, drain, hooks, and the two kinds of handlers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from taskmq import App, InvalidArgument, QueueConfig, TaskMQError, current
from taskmq.testing.signals import Gate, Record

MakeSite = Callable[..., Any]
POOLS = pytest.mark.parametrize("pool", ["threads", "solo", "asyncio"])


@pytest.fixture
def app(site: MakeSite) -> App:
    app: App = site().app

    @app.task(name="mail", queue="mail")
    def mail() -> None:
        pass

    @app.task(name="default")
    def default() -> None:
        pass

    return app


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1001},
        {"concurrency": True},
        {"concurrency": 1.0},
        {"prefetch": -1},
        {"prefetch": 1001},
        {"prefetch": "many"},
        {"prefetch": None},
        {"prefetch": True},
        {"pool": "fibers"},
        {"pool": "solo", "concurrency": 2},
        {"grace": -1},
        {"queues": []},
        {"queues": "a,,b"},
        {"queues": ["no blanks"]},
        {"name": "no blanks"},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_when_the_worker_is_made(app: App, options: dict[str, Any]) -> None:
    """Options outside their range raise InvalidArgument, before anything is started."""
    with pytest.raises(InvalidArgument):
        app.worker(**options)


def test_a_worker_serves_the_queues_of_all_handlers(app: App) -> None:
    """Without queues named, it takes those its handlers name."""
    assert app.worker().options.queues == ("default", "mail")
    assert app.worker(queues="a, b").options.queues == ("a", "b")
    assert app.worker(queues=["b", "a", "b"]).options.queues == ("b", "a")


def test_a_worker_without_any_queue_is_refused(site: MakeSite) -> None:
    """No handlers and no queues named: there would be nothing to do, for ever."""
    with pytest.raises(InvalidArgument, match="no handler"):
        site().app.worker()


@POOLS
def test_drain_works_until_nothing_is_ready(site: MakeSite, pool: str) -> None:
    """Drain returns True when all is done, also what handlers have published meanwhile; later tasks stay."""
    app: App = site().app
    done: list[int] = []

    @app.task
    def spread(depth: int) -> None:
        done.append(depth)
        if depth:
            app.enqueue_many([spread.message(depth - 1), spread.message(depth - 1)])

    spread.enqueue(6)
    spread.using(delay=3600).enqueue(0)
    with app.worker(pool=pool) as worker:
        assert worker.drain(20)
        assert len(done) == 127
        spread.enqueue(0)
        assert worker.drain(20)
        assert len(done) == 128


def test_drain_says_when_its_time_is_over(site: MakeSite) -> None:
    """Drain with a timeout returns False while a task still runs."""
    app: App = site().app
    gate = Gate()

    @app.task
    def work() -> None:
        gate.pass_through()

    work.enqueue()
    with app.worker() as worker:
        gate.arrivals.wait()
        assert not worker.drain(0.01)
        gate.open()
        assert worker.drain(10)


def test_a_worker_is_started_once(app: App) -> None:
    """A second start and a drain before the start are refused in words."""
    worker = app.worker()
    with pytest.raises(TaskMQError, match="not been started"):
        worker.drain()
    with worker, pytest.raises(TaskMQError, match="before"):
        worker.start()


def test_a_worker_that_was_never_started_stops_at_once(app: App) -> None:
    """Stopping is always possible, and final."""
    worker = app.worker()
    worker.stop()
    with pytest.raises(TaskMQError, match="before"):
        worker.start()


def test_published_work_wakes_an_idle_worker(site: MakeSite) -> None:
    """A worker that waits is woken by a publish, again and again."""
    app: App = site().app
    ran = Record[int]()

    @app.task
    def work(number: int) -> None:
        ran.add(number)

    with app.worker():
        for number in range(50):
            work.enqueue(number)
            ran.wait(number + 1)
    assert ran.items == list(range(50))


def test_a_task_that_falls_due_starts_then(site: MakeSite) -> None:
    """A worker looks again when the next task falls due, without any publish to wake it."""
    app: App = site().app
    ran = Record[str]()

    @app.task
    def work(name: str) -> None:
        ran.add(name)

    with app.worker():
        work.using(delay=0.3).enqueue("later")
        work.enqueue("now")
        assert ran.wait(2) == ["now", "later"]


@POOLS
def test_coroutines_run_on_one_loop_thread(site: MakeSite, pool: str) -> None:
    """``async def`` handlers run on the event loop of the worker, others in other threads; both get results."""
    app: App = site().app

    @app.task
    async def cooperative() -> str:
        assert current().attempt == 1
        return threading.current_thread().name

    @app.task
    def plain() -> str:
        assert current().attempt == 1
        return threading.current_thread().name

    handles = [cooperative.enqueue(), cooperative.enqueue(), plain.enqueue()]
    with app.worker(pool=pool) as worker:
        assert worker.drain(10)
        names = [handle.result(timeout=10) for handle in handles]
    assert names[0] == names[1] == "taskmq-loop"
    assert names[2] == "taskmq-fetch" if pool == "solo" else names[2].startswith("taskmq-handler-")


def test_hooks_see_the_start_and_the_end(app: App) -> None:
    """worker_start comes before any task, worker_stop after everything is settled."""
    seen: list[tuple[str, Any]] = []
    app.on("worker_start")(lambda worker: seen.append(("start", worker)))
    app.on("worker_stop")(lambda worker: seen.append(("stop", worker)))
    with app.worker() as worker:
        assert seen == [("start", worker)]
    assert seen == [("start", worker), ("stop", worker)]


def test_settings_that_drifted_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose app seeds a queue otherwise than the store has it says so, and the store's setting holds."""
    app = App("memory://", queues={"q": QueueConfig(weight=2)})

    @app.task(queue="q")
    def work() -> None:
        pass

    with app:
        app.store.configure_queues({"q": QueueConfig(weight=7)}, overwrite=True)
        with caplog.at_level(logging.WARNING), app.worker():
            pass
        (stats,) = app.store.stats(["q"])
    assert stats.config.weight == 7
    assert "weight" in caplog.text
