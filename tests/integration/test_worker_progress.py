"""Progress: what a handler says of itself, and how soon and how often the store hears it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from taskmq import App, Context, InvalidArgument, current
from taskmq.codec import Envelope
from taskmq.message import Delivery
from taskmq.state import Progress
from taskmq.testing.faulty import Faulty
from taskmq.testing.signals import Gate, Record

MakeSite = Callable[..., Any]


def told(faulty: Faulty) -> list[Progress]:
    """The progress that was sent, in order."""
    return [
        item.progress
        for call in faulty.answered("extend")
        for item in call.params[0].items
        if item.progress is not None
    ]


@pytest.mark.parametrize("pool", ["threads", "solo", "asyncio"])
def test_progress_is_sent_long_before_the_next_heartbeat(site: MakeSite, pool: str) -> None:
    """The latest of many reports reaches the store while the task runs, in one message."""
    one = site(lease=3600)
    app: App = one.app
    gate = Gate()

    @app.task
    def work() -> None:
        for step in range(10_001):
            current().progress(step, 10_000, "nearly" if step == 10_000 else None)
        gate.pass_through()

    work.enqueue()
    with app.worker(pool=pool) as worker:
        gate.arrivals.wait()
        one.faulty.calls.wait_until(lambda _: Progress(10_000, 10_000, "nearly") in told(one.faulty), "the progress")
        assert len(told(one.faulty)) <= 2
        gate.open()
        assert worker.drain(10)


def test_progress_is_sent_about_once_a_second(site: MakeSite) -> None:
    """A handler that reports all the time costs the store one call a second, and each has something new."""
    one = site(lease=3600)
    app: App = one.app
    stop = Record[int]()

    @app.task
    async def work() -> None:
        import asyncio

        step = 0
        while not stop.items:
            step += 1
            current().progress(step)
            await asyncio.sleep(0.001)

    work.enqueue()
    with app.worker() as worker:
        one.faulty.calls.wait_until(lambda _: len(told(one.faulty)) >= 3, "three reports")
        stop.add(1)
        assert worker.drain(10)
    amounts = [progress.done for progress in told(one.faulty)]
    assert amounts == sorted(set(amounts))


def test_progress_that_could_not_be_sent_is_sent_later(site: MakeSite) -> None:
    """A store that fails gets the latest word when it is back."""
    one = site(lease=3600)
    app: App = one.app
    gate = Gate()

    @app.task
    def work() -> None:
        current().progress(1)
        gate.pass_through()

    one.faulty.fail("extend")
    work.enqueue()
    with app.worker() as worker:
        one.faulty.faults.wait()
        one.faulty.heal()
        one.faulty.calls.wait_until(lambda _: Progress(1.0) in told(one.faulty), "the progress")
        gate.open()
        assert worker.drain(10)


def test_the_progress_of_ended_tasks_is_forgotten(site: MakeSite) -> None:
    """What came too late to be sent leaves nothing behind in the worker."""
    one = site()
    app: App = one.app
    gate = Gate()

    @app.task
    def work(last: bool) -> None:
        current().progress(1)
        if last:
            gate.pass_through()

    app.enqueue_many([work.message(False) for _ in range(50)])
    work.enqueue(True)
    with app.worker(concurrency=1) as worker:
        gate.arrivals.wait()
        one.faulty.calls.wait_until(lambda _: told(one.faulty), "the progress of the last")
        gate.open()
        assert worker.drain(10)
    assert not worker._news.pending()


def context(report: Any = None) -> Context:
    delivery = Delivery(
        id="t", queue="q", handler="h", body=b"", priority=0, attempt=1, max_attempts=3, epoch=1, lease_until=0, lease=1
    )
    return Context(delivery, Envelope(), report)


@pytest.mark.parametrize(
    "words",
    [
        (-1,),
        (math.nan,),
        (math.inf,),
        ("1",),
        (True,),
        (None,),
        (1, -1),
        (1, math.inf),
        (1, 2, "x" * 257),
        (1, 2, 3),
    ],
    ids=str,
)
def test_a_wrong_progress_is_refused(words: tuple[Any, ...]) -> None:
    """Numbers are finite and not negative, a note has at most 256 characters."""
    with pytest.raises(InvalidArgument, match="progress"):
        context().progress(*words)


def test_a_progress_is_what_was_said() -> None:
    """``done`` may exceed ``total``; integers become floats."""
    said: list[Progress] = []
    here = context(lambda _, progress: said.append(progress))
    here.progress(3)
    here.progress(3, 2, "x" * 256)
    assert said == [Progress(3.0), Progress(3.0, 2.0, "x" * 256)]
