"""A store as it stood when it was examined: read once, each read bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from taskmq.config import Config
from taskmq.errors import ConfigError, StoreFull, TaskMQError, TransportError, TransportUnavailable
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import Find, Finding, PartitionInfo, QueueStats, Store, WorkerInfo

RUNNING_SAMPLE = 100

T = TypeVar("T")


class Handler(Protocol):
    """What is asked of an app's handler."""

    name: str
    is_coroutine: bool
    timeout: int | None


class Patient(Protocol):
    """What is examined: an app, with or without handlers."""

    @property
    def config(self) -> Config: ...

    @property
    def handlers(self) -> Mapping[str, Any]: ...

    @property
    def store(self) -> Store: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A store as it stood, and the app that looks at it.

    ``now``       the store's clock, and ``clock`` this machine's at the same moment
    ``stopped``   of each queue, the partitions that do not go on
    ``newest``    the newest task · ``running`` some of those in workers' hands
    ``handlers``  the app's by name; empty: there is no app at hand
    """

    now: int
    clock: int
    durable: bool
    shared: bool
    config: Config
    handlers: Mapping[str, Handler]
    queues: list[QueueStats]
    workers: list[WorkerInfo]
    stopped: Mapping[str, list[PartitionInfo]]
    newest: TaskInfo | None
    running: list[TaskInfo]

    def serving(self, queue: str) -> list[WorkerInfo]:
        """The live workers that subscribe to a queue."""
        return [worker for worker in self.workers if queue in worker.queues]


def read_facts(app: Patient, store: Store, found: list[Finding]) -> Facts:
    """The snapshot; what cannot be read becomes a finding and is taken for empty."""
    queues = read(store.stats, found)
    before = _clock()
    now = read(lambda: [store.now()], found) or [before]
    clock = (before + _clock()) // 2
    running = Find(states=[TaskState.RUNNING], limit=RUNNING_SAMPLE)
    newest = read(lambda: store.find(Find(limit=1)).tasks, found)
    return Facts(
        now=now[0],
        clock=clock,
        durable=store.capabilities.durable,
        shared=store.capabilities.shared,
        config=app.config,
        handlers=app.handlers,
        queues=queues,
        workers=read(store.workers, found),
        stopped={
            queue.name: read(partial(store.partitions, queue.name, stopped=True), found)
            for queue in queues
            if queue.partitions
        },
        newest=newest[0] if newest else None,
        running=read(lambda: store.find(running).tasks, found),
    )


def read(what: Callable[[], list[T]], found: list[Finding]) -> list[T]:
    """What is read, or nothing and a finding."""
    try:
        return what()
    except TransportError as error:
        found.append(unusable(error))
    except Exception as error:  # a record that somebody has tampered with may raise anything
        found.append(
            Finding(
                check="content",
                level="error",
                text=f"something in the store cannot be read: {type(error).__name__}: {error}",
                fix="find the record with the store's own tools; mend or delete it",
            )
        )
    return []


def unusable(error: TaskMQError) -> Finding:
    """The finding for a store or an app that cannot be opened."""
    if isinstance(error, ConfigError):
        fix = "correct what it names; until then neither publishing nor working is possible"
    elif isinstance(error, StoreFull):
        fix = "make room; until then nothing can be published"
    elif isinstance(error, TransportUnavailable):
        fix = "start the store, or end what locks it, and run doctor again"
    else:
        fix = "mend the store: until then neither publishing nor working is possible"
    return Finding(check="store", level="error", text=str(error), fix=fix)


def _clock() -> int:
    return time.time_ns() // 1000
