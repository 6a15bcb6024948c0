"""``why``: the right reason in each situation."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from taskmq import App, Limit, QueueConfig, Rate, TaskInfo, TaskState
from taskmq.outcome import Ack, Dead, Defer, Retry
from taskmq.transport.base import LimitInfo, PartitionInfo, QueueStats, Reserve, Settle, Settlement, WorkerInfo
from taskmq.why import why

Situation = Callable[[App], str]


def claim(app: App) -> list[Settlement]:
    got = app.store.reserve(Reserve(queues=["q"], limit=1, worker="w1"))
    return [Settlement(delivery, Ack()) for delivery in got.deliveries]


def end(app: App, outcome: Ack | Dead | Retry | Defer) -> None:
    (item,) = claim(app)
    app.store.settle(Settle(items=[Settlement(item.delivery, outcome)]))


def subscribe(app: App, *handlers: str) -> None:
    app.store.heartbeat(
        WorkerInfo(
            id="w9",
            host="h",
            pid=1,
            queues=["q"],
            pool="threads",
            concurrency=1,
            version="1",
            started_at=0,
            handlers=handlers,
        ),
        60_000_000,
    )


def put(app: App, **options: object) -> str:
    return app.ref("h", queue="q").using(**options).enqueue().id  # type: ignore[arg-type]


def not_due(app: App) -> str:
    return put(app, delay=60)


def running(app: App) -> str:
    task = put(app)
    claim(app)
    return task


def cancelled_while_running(app: App) -> str:
    task = running(app)
    app.store.cancel([task])
    return task


def succeeded(app: App) -> str:
    task = put(app)
    end(app, Ack())
    return task


def dead(app: App) -> str:
    task = put(app)
    end(app, Dead("failed", "E: boom"))
    return task


def queue_paused(app: App) -> str:
    app.queue("q").pause()
    return put(app)


def partition_paused(app: App) -> str:
    app.partition("q", "!x").pause()
    return put(app, partition="!x")


def partition_held(app: App) -> str:
    app.queue("q").configure(on_dead="hold")
    put(app, partition="!x")
    end(app, Dead("failed"))
    return put(app, partition="!x")


def partition_blocked(app: App) -> str:
    put(app, partition="!x")
    end(app, Defer(60_000_000))
    return put(app, partition="!x")


def partition_busy(app: App) -> str:
    put(app, partition="!x")
    claim(app)
    return put(app, partition="!x")


def retrying(app: App) -> str:
    task = put(app)
    end(app, Retry(60_000_000, "E: boom"))
    return task


def queue_full(app: App) -> str:
    app.queue("q").configure(max_running=1)
    put(app)
    claim(app)
    return put(app)


def no_worker(app: App) -> str:
    return put(app)


def handler_unknown(app: App) -> str:
    subscribe(app, "other")
    return put(app)


def behind_others(app: App) -> str:
    subscribe(app, "h")
    put(app, priority=9)
    put(app)
    return put(app)


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        (not_due, "not due before"),
        (running, "runs on worker w1"),
        (cancelled_while_running, "asked to stop"),
        (succeeded, "ended SUCCEEDED"),
        (dead, "ended FAILED at .*failed E: boom"),
        (queue_paused, "queue q is paused: taskmq queue resume q"),
        (partition_paused, "partition !x is paused"),
        (partition_held, "held by the dead task"),
        (partition_blocked, "partition !x is blocked until"),
        (partition_busy, "ordered and held by worker w1"),
        (retrying, "attempt 1 failed; it is tried again at"),
        (queue_full, r"queue q runs 1 tasks, as many as it may \(max_running=1\)"),
        (no_worker, "no worker subscribes to its queue q"),
        (handler_unknown, "knows the handler h: w9"),
        (
            behind_others,
            "1 ready tasks .* 1 others have .* 1 workers subscribe, with 0 of their 1 slots",
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_why_names_the_rule(scheme: str, situation: Situation, words: str, tmp_path: object) -> None:
    """Each situation gets the reason that holds, on every store."""
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/q.db"
    with App(url, queues={"q": QueueConfig()}) as app:
        task = situation(app)
        assert re.search(words, app.why(task)), app.why(task)


class Gates:
    """A store in which a task of queue q waits at a gate."""

    def __init__(
        self,
        queue: QueueStats | None = None,
        partition: PartitionInfo | None = None,
        limit: LimitInfo | None = None,
    ) -> None:
        self.queue = queue or QueueStats(name="q", config=QueueConfig())
        self.partition, self.limit = partition, limit

    def stats(self, _names: list[str]) -> list[QueueStats]:
        return [self.queue]

    def partitions(self, _queue: str, _codes: list[str]) -> list[PartitionInfo]:
        return [self.partition] if self.partition else []

    def limits(self, keys: list[str]) -> list[LimitInfo]:
        return [self.limit] if self.limit and self.limit.key in keys else []

    def workers(self) -> list[WorkerInfo]:
        return []


def limit(running: int, parked: int) -> LimitInfo:
    return LimitInfo(key="user:7", running=running, parked=parked)


def waiting(**fields: object) -> TaskInfo:
    base = {"id": "0" * 32, "queue": "q", "handler": "h", "state": TaskState.QUEUED, "priority": 0, "seq": 1}
    return TaskInfo(**{**base, "attempt": 0, "max_attempts": 3, "epoch": 0, **fields})  # type: ignore[arg-type]


LIMITED = waiting(limit=Limit("user:7", 2))
PARKED = waiting(limit=Limit("user:7", 2), parked=True)
RATED = QueueConfig(rate=Rate(count=100, per=60.0))


@pytest.mark.parametrize(
    ("task", "gates", "words"),
    [
        (PARKED, Gates(limit=limit(2, 5)), "limit user:7 is reached: 2 tasks .* lets 2 .* 5 are parked"),
        (LIMITED, Gates(limit=limit(3, 0)), "limit user:7 is reached: 3 tasks .* lets 2 .* 0 are parked"),
        (PARKED, Gates(limit=limit(1, 5)), "a slot is free, it returns in its turn"),
        (PARKED, Gates(), "a slot is free"),
        (LIMITED, Gates(limit=limit(1, 0)), "no worker subscribes"),
        (
            waiting(partition="p"),
            Gates(
                partition=PartitionInfo(
                    queue="q", code="p", ordered=False, weight=1, waiting=4, running=20, max_running=20
                )
            ),
            r"its partition p runs 20 tasks, as many as it may \(max_running=20\)",
        ),
        (
            waiting(),
            Gates(QueueStats(name="q", config=RATED, next_start_at=1_700_000_000_500_000)),
            "its rate allows, 100 in 60 s; the next one may start at 2023-11-14T22:13:20.500Z",
        ),
        (waiting(), Gates(QueueStats(name="q", config=RATED)), "no worker subscribes"),
    ],
)
def test_why_names_the_gate_and_its_numbers(task: TaskInfo, gates: Gates, words: str) -> None:
    """A task at a limit, at max_running or at a rate is told which one, with its numbers; an open gate is not told."""
    text = why(gates, task)  # type: ignore[arg-type]
    assert re.search(words, text), text
