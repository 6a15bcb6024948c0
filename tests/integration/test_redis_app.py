"""An app and its worker on Redis and Valkey, with and without Lua on the server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmq import App, QueueConfig, Retry
from taskmq.state import TaskState
from taskmq.testing.servers import Kind, redis_server

PATIENCE = 20.0


@pytest.fixture(params=["redis", "redis-nolua", "valkey", "valkey-nolua"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place of its own on a server."""
    kind, _, nolua = request.param.partition("-")
    kinds: dict[str, Kind] = {"redis": "redis", "valkey": "valkey"}
    server = redis_server(kinds[kind])
    url = server.url(f"{tmp_path.name}:", lua="off" if nolua else "on")
    yield url
    with App(url) as app:
        app.store.flush()


def run(app: App, concurrency: int = 1, **options: Any) -> None:
    """Work until nothing is left."""
    with app.worker(concurrency=concurrency, pool="threads" if concurrency > 1 else "solo", **options) as worker:
        worker.drain()


def test_a_task_runs_and_gives_its_result(url: str) -> None:
    """Enqueue, work, result: the whole way round."""
    with App(url) as app:

        @app.task
        def add(a: int, b: int) -> int:
            return a + b

        handle = add.enqueue(2, b=3)
        run(app)
        assert handle.result(timeout=PATIENCE) == 5
        assert app.get(handle.id).state is TaskState.SUCCEEDED


def test_an_urgent_task_jumps_the_line(url: str) -> None:
    """Of twenty normal tasks and one urgent one, enqueued last, the urgent one runs first."""
    ran: list[int] = []
    with App(url) as app:

        @app.task
        def note(number: int) -> None:
            ran.append(number)

        app.enqueue_many([note.message(number) for number in range(20)])
        note.using(priority=9).enqueue(99)
        run(app)
    assert ran == [99, *range(20)]


def test_two_queues_share_by_weight(url: str) -> None:
    """Weights 3:1, a hundred tasks each, forty taken: thirty to ten; an urgent one in the light queue goes first."""
    ran: list[str] = []
    done = threading.Event()
    with App(url, queues={"heavy": QueueConfig(weight=3), "light": QueueConfig(weight=1)}) as app:

        @app.task
        def note(queue: str) -> None:
            ran.append(queue)
            if len(ran) == 41:
                done.set()

        app.enqueue_many([note.using(queue=name).message(name) for name in ("heavy", "light") for _ in range(100)])
        note.using(queue="light", priority=5).enqueue("urgent")
        with app.worker(queues=["heavy", "light"], concurrency=1, pool="solo", prefetch=1):
            assert done.wait(PATIENCE)
    first = ran[:41]
    assert first[0] == "urgent"
    assert abs(Counter(first)["heavy"] - 30) <= 2


def test_four_threads_run_each_task_once(url: str) -> None:
    """Two hundred tasks, four threads: each runs once."""
    ran: list[int] = []
    with App(url) as app:

        @app.task
        def note(number: int) -> None:
            ran.append(number)

        app.enqueue_many([note.message(number) for number in range(200)])
        run(app, concurrency=4)
    assert Counter(ran) == Counter(range(200))


def test_an_ordered_partition_keeps_its_order_over_retries(url: str) -> None:
    """A fails twice, B and C wait for it; another partition goes on meanwhile."""
    ran: list[str] = []
    with App(url) as app:

        @app.task
        def step(name: str) -> None:
            ran.append(name)
            if ran.count("A") <= 2 and name == "A":
                raise OSError(name)

        again = step.using(ordered_by="x", retry=Retry(base=0.05, jitter=False, backoff="fixed"))
        app.enqueue_many([again.message(name) for name in "ABC"])
        step.using(ordered_by="y").enqueue("other")
        deadline = time.monotonic() + PATIENCE
        while len(ran) < 6 and time.monotonic() < deadline:
            run(app, concurrency=4)
    assert [name for name in ran if name != "other"] == ["A", "A", "A", "B", "C"]


def test_an_idle_worker_is_woken_by_an_event(url: str) -> None:
    """A worker that waits starts a new task at once, not at its next look."""
    started = threading.Event()
    with App(url) as app:

        @app.task
        def mark() -> None:
            started.set()

        with app.worker(concurrency=1, pool="solo"):
            time.sleep(0.3)  # it has found nothing and waits
            begun = time.perf_counter()
            mark.enqueue()
            assert started.wait(PATIENCE)
    assert time.perf_counter() - begun < 0.5
