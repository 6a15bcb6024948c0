"""The measures of ``taskmq bench``. Each is one number; all use an app whose namespace is thrown away afterwards."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple

from taskmq.app import App
from taskmq.errors import TaskMQError
from taskmq.message import Message
from taskmq.outcome import Ack
from taskmq.transport.base import Publish, Reserve, Settle, Settlement

BATCH = 100
MOST_SINGLE = 2000
"""Most publishes one by one: each waits for the disk."""
MOST_LATENCY = 500
PATIENCE = 60.0
"""Seconds to wait for one task to start."""
WARM_UP = 5


class Measured(NamedTuple):
    """What came out. Rates are tasks a second."""

    publish_single: float
    publish_batch: float
    claim_settle: float
    worker: float
    latency_p50_ms: float
    latency_p99_ms: float


def measure(app: App, tasks: int, payload: int, concurrency: int) -> Measured:
    """All measures, one after the other; raises what the store raises."""

    @app.task(name="bench.noop", queue="bench")
    def noop(data: str) -> None:
        pass

    def messages(count: int) -> list[Message]:
        return [noop.message("x" * payload) for _ in range(count)]

    single = _publish_single(messages(min(tasks, MOST_SINGLE)), app)
    _claim_settle(app)
    batch = _publish_batches(messages(tasks), app)
    claim = _claim_settle(app)
    _publish_batches(messages(tasks), app)
    with _quiet():
        worker = tasks / _drained(app, concurrency)
        waits = _latencies(app, min(tasks, MOST_LATENCY), "x" * payload, concurrency)
    return Measured(
        publish_single=single,
        publish_batch=batch,
        claim_settle=claim,
        worker=worker,
        latency_p50_ms=_quantile(waits, 0.50) * 1000,
        latency_p99_ms=_quantile(waits, 0.99) * 1000,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines of the workers between the figures, unless something is wrong."""
    log = logging.getLogger("taskmq")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _drained(app: App, concurrency: int) -> float:
    """Seconds from a worker's start until everything published has run."""
    begun = perf_counter()
    with app.worker(queues=["bench"], concurrency=concurrency, name="bench") as worker:
        worker.drain()
        return perf_counter() - begun


def _latencies(app: App, count: int, data: str, concurrency: int) -> list[float]:
    """Seconds from each call of ``enqueue`` to its handler's first line, an idle worker waiting; ascending."""
    started = SimpleQueue[float]()

    @app.task(name="bench.mark", queue="bench-latency")
    def mark(data: str) -> None:
        started.put(perf_counter())

    waits = []
    with app.worker(queues=["bench-latency"], concurrency=concurrency, name="bench"):
        for _ in range(WARM_UP + count):
            published = perf_counter()
            mark.enqueue(data)
            try:
                waits.append(started.get(timeout=PATIENCE) - published)
            except Empty:
                raise TaskMQError(f"a task was not started within {PATIENCE:g} s; see taskmq doctor") from None
    return sorted(waits[WARM_UP:])


def _publish_single(messages: Sequence[Message], app: App) -> float:
    begun = perf_counter()
    for message in messages:
        app.store.publish(Publish(messages=[message]))
    return len(messages) / (perf_counter() - begun)


def _publish_batches(messages: Sequence[Message], app: App) -> float:
    begun = perf_counter()
    for batch in _batches(messages):
        app.store.publish(Publish(messages=batch))
    return len(messages) / (perf_counter() - begun)


def _claim_settle(app: App) -> float:
    """As a worker's fetch loop does it: what has ended is settled in the exchange that claims the next."""
    claim = Reserve(queues=["bench"], limit=BATCH, worker="bench")
    begun = perf_counter()
    count = 0
    claimed = app.store.reserve(claim)
    while claimed.deliveries:
        count += len(claimed.deliveries)
        ended = Settle(items=[Settlement(delivery, Ack(), started_ago=0) for delivery in claimed.deliveries])
        claimed = app.store.settle_and_reserve(ended, claim)[1]
    return count / (perf_counter() - begun)


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), BATCH):
        yield messages[start : start + BATCH]


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]
