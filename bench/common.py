"""What the benchmarks share: fresh stores, filled queues, alternating rounds, one line a figure."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from taskmq.codec import Envelope, encode
from taskmq.durations import Moment
from taskmq.ids import new_id
from taskmq.message import Delivery, Message
from taskmq.outcome import Ack
from taskmq.queue import Limit, Partition
from taskmq.testing.servers import redis_server
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store

BODY = encode(Envelope(args=msgspec.Raw(b'["' + b"x" * 96 + b'"]')))
"""A task with 100 bytes of arguments."""


@contextmanager
def folder() -> Iterator[Path]:
    """A place on the disk that is measured: TASKMQ_BENCH_DIR, else the system's temporary directory."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TASKMQ_BENCH_DIR")) as name:
        yield Path(name)


def message(
    queue: str = "q",
    partition: str | None = None,
    delay: float | None = None,
    handler: str = "h",
    limit: Limit | None = None,
) -> Message:
    """One task."""
    return Message(
        id=new_id(),
        queue=queue,
        handler=handler,
        body=BODY,
        limit=limit,
        partition=Partition(partition) if partition else None,
        run_after=None if delay is None else Moment(round(delay * 1e6), relative=True),
    )


def fill(store: Store, count: int, make: Callable[[int], Message], batch: int = 1000) -> None:
    """Publish so many tasks."""
    for start in range(0, count, batch):
        store.publish(Publish(messages=[make(i) for i in range(start, min(start + batch, count))]))


def claim(store: Store, n: int) -> list[Delivery]:
    """Claim up to n tasks."""
    return store.reserve(Reserve(queues=["q"], limit=n, worker="w")).deliveries


def acknowledge(store: Store, deliveries: Sequence[Delivery]) -> None:
    """Settle them all."""
    store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in deliveries]))


def work_off(store: Store, count: int, batch: int) -> float:
    """Tasks a second of claiming and settling so many of them."""

    def all_of_them() -> None:
        for _ in range(0, count, batch):
            acknowledge(store, claim(store, batch))

    return count / seconds(all_of_them)


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def store_url(store: str, place: Path, number: int) -> str:
    """An empty store: of memory, in a file of its own, or under a prefix of its own on this process's server."""
    if store in ("redis", "valkey"):
        return redis_server(store).url(f"{number}:")
    return "memory://" if store == "memory" else f"sqlite:///{place}/{number}.db"


def alternate(sides: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """The median of each side's figures; the sides take turns, so that drift of the machine hits all alike."""
    figures: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for figure, side in zip(figures, sides, strict=True):
            figure.append(side())
    return [statistics.median(figure) for figure in figures]


def report(name: str, ours: str, theirs: str, ratio: float, reach: str) -> None:
    """One line a ratio; ``reach`` is a bound like ``>= 0.7``, or ``-``."""
    print(f"{name:<58} {ours:>16} {theirs:>16}   ratio {ratio:6.2f}   {verdict(ratio, reach)}", flush=True)


def figure(name: str, shown: str, value: float, reach: str) -> None:
    """One line a figure that stands for itself."""
    print(f"{name:<58} {shown:>16} {'':>16}   {'':12}   {verdict(value, reach)}", flush=True)


def verdict(value: float, reach: str) -> str:
    """Whether a figure keeps within its reach."""
    sign, _, bound = reach.partition(" ")
    if not bound:
        return f"(reach {reach})"
    limit = float(bound.replace(",", ""))
    good = value >= limit if sign == ">=" else value <= limit if sign == "<=" else value < limit
    return f"(reach {reach}: {'reached' if good else 'missed'})"
