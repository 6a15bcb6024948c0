"""The seam between the queue and its stores.

``Transport`` is what publishing and working need; ``Inspect`` is what operators need. Both are synchronous,
thread-safe and batch-first; every verb takes one frozen params object, so a new field touches only the stores that
care. What the verbs mean is fixed by the design page ``model.md``; a store that cannot do something says so in
``limitations`` and the conformance suite skips exactly the named scenario.

Times are microseconds since the epoch by the store's clock; durations are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from taskmq.message import Delivery, Message
from taskmq.outcome import Outcome
from taskmq.queue import QueueConfig
from taskmq.state import Progress, TaskInfo, TaskState

PUBLISH_BATCH = 1000
"""Most messages in one publish (defaults.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do beyond the model's minimum. App, docs and conformance suite read this record."""

    durable: bool
    """Survives the end of this process."""
    shared: bool
    """Several processes can use it at once."""


# ── publish ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """Store these messages in this order, all or none."""

    messages: Sequence[Message]


class Receipt(msgspec.Struct, frozen=True):
    """One published message: its task's id, and whether the key had been published before (then the first id)."""

    id: str
    duplicate: bool


# ── reserve ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """Claim up to ``limit`` tasks of these queues for ``worker``.

    ``lease``     microseconds, for queues that have no lease of their own
    ``handlers``  the (handler, version) pairs this claim can run; None: it takes what comes (model.md §8)
    ``keys``      whether it takes tasks with a concurrency limit
    ``reservation``  a server's claim (serving.py): ``lease`` holds whatever the queue says, and its end blames nobody
    """

    queues: Sequence[str]
    limit: int
    worker: str
    lease: int = 30_000_000
    handlers: Sequence[tuple[str, str]] | None = None
    keys: bool = True
    reservation: bool = False


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """What a reserve brought.

    ``more``      the claim stopped early; reserve again before waiting
    ``next_due``  when the next task, blocked partition or lease of these queues falls due, or a rate lets one start;
                  None: nothing pending, or as many came as were asked for (then nobody is about to sleep)
    """

    deliveries: list[Delivery]
    more: bool = False
    next_due: int | None = None


# ── settle, extend ───────────────────────────────────────────────────────────────────────────────────────────────────


class Settlement(msgspec.Struct, frozen=True):
    """One delivery and how it ended.

    ``started_ago``: microseconds since its handler was started, by the worker's clock; None when it never was.
    """

    delivery: Delivery
    outcome: Outcome
    started_ago: int | None = None


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """End these deliveries, in this order. One lost lease does not stop the others."""

    items: Sequence[Settlement]


@dataclass(frozen=True, slots=True)
class Renewal:
    """One delivery whose lease is to be renewed, whether its handler has been started, and news of its progress."""

    delivery: Delivery
    started: bool
    progress: Progress | None = None
    """None: nothing new since the last renewal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """Renew these leases by each delivery's own ``lease`` from now, and mark which of them are started.

    Also the way to mark a last attempt started before its handler runs (model.md §2).
    """

    items: Sequence[Renewal]


@dataclass(frozen=True, slots=True)
class Renewed:
    """Answer for one renewal: the new lease end, or None if the lease is lost; and whether a cancel is requested."""

    lease_until: int | None
    cancel: bool = False


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintain:
    """Promote what is due, reap ended leases, delete finished tasks whose retention is over: one bounded batch each."""

    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What one maintain did; ``more``: at least one batch was full, so call again."""

    promoted: int = 0
    reaped: int = 0
    deleted: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Block until work may be there in these queues, at most ``timeout`` seconds."""

    queues: Sequence[str]
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker's row in the worker table. ``seen_at`` is set by the store, ``clock`` is the worker's own then."""

    id: str
    host: str
    pid: int
    queues: Sequence[str]
    pool: str
    concurrency: int
    version: str
    started_at: int
    handlers: Sequence[str] = ()
    running: int = 0
    held: int = 0
    clock: int = 0
    seen_at: int = 0


class Transport(Protocol):
    """A store as producers and workers use it.

    Every verb may raise TransportError (see its subclasses for what did and did not happen) and nothing of the
    driver's own. ``publish`` also raises IdempotencyConflict and QueueFull, both with nothing stored.
    """

    name: str
    capabilities: Capabilities
    limitations: Mapping[str, str]
    """Scenario of the conformance suite → why this store cannot do it."""

    def publish(self, params: Publish) -> list[Receipt]:
        """Store the messages, all or none; returns a receipt for each, in order.

        A message that is stored already, by its id, is a duplicate of itself: to send again after a lost answer is
        safe.
        """
        ...

    def reserve(self, params: Reserve) -> Reserved:
        """Claim the next tasks by the claim rule (model.md §5, §6); first promotes and reaps what is due there."""
        ...

    def settle(self, params: Settle) -> list[bool]:
        """End deliveries; False where the lease was lost and nothing was changed. Repeating a settle is harmless."""
        ...

    def settle_and_reserve(self, settle: Settle, reserve: Reserve) -> tuple[list[bool], Reserved]:
        """Both, in this order, in as few exchanges as the store can."""
        ...

    def extend(self, params: Extend) -> list[Renewed]:
        """Renew leases and mark started tasks."""
        ...

    def maintain(self, params: Maintain) -> Maintained:
        """One bounded round of housekeeping over all queues; any process may call it at any time."""
        ...

    def wait(self, params: Wait) -> bool:
        """Block until work may be there (True), or the timeout is over or ``wake`` was called (False)."""
        ...

    def wake(self) -> None:
        """Make every blocked ``wait`` of this object return now."""
        ...

    def lock(self, name: str, owner: str, ttl: int) -> bool:
        """Take or renew the named lease for ``ttl`` microseconds; False while another owner holds it."""
        ...

    def unlock(self, name: str, owner: str) -> None:
        """Give the named lease back if ``owner`` holds it."""
        ...

    def heartbeat(self, worker: WorkerInfo, ttl: int) -> None:
        """Write the worker's row; it is forgotten ``ttl`` microseconds later unless written again."""
        ...

    def forget(self, worker_id: str) -> None:
        """Remove a worker's row."""
        ...

    def configure_queues(self, queues: Mapping[str, QueueConfig], overwrite: bool = False) -> dict[str, list[str]]:
        """Seed queues never configured before (all with ``overwrite``); returns drift: queue → field names."""
        ...

    def close(self) -> None:
        """Release what the store holds open; further verbs raise TransportError."""
        ...


# ── operators ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """Which tasks to list; every given condition must hold. Newest first; ``after`` is the previous page's cursor."""

    queue: str | None = None
    states: Sequence[TaskState] = ()
    handler: str | None = None
    partition: str | None = None
    tag: str | None = None
    after: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page of tasks, and the cursor of the next one (None: this was the last)."""

    tasks: list[TaskInfo]
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """A queue as it stands. Ages are microseconds; None where there is nothing to measure."""

    name: str
    config: QueueConfig
    scheduled: int = 0
    ready: int = 0
    running: int = 0
    retrying: int = 0
    dead: int = 0
    by_priority: Mapping[int, int] = field(default_factory=dict)
    """Ready tasks by priority."""
    by_handler: Mapping[str, int] = field(default_factory=dict)
    """Unfinished tasks by handler."""
    partitions: int = 0
    oldest_ready_age: int | None = None
    """How long the oldest has been ready of the tasks that are next: of each priority, the first unpartitioned one of
    each handler, and the head of the next partition."""
    served: float = 0.0
    next_start_at: int | None = None
    """Under a rate: when the next start is allowed; None: now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition with something in line, running or blocked."""

    queue: str
    code: str
    ordered: bool
    weight: int
    waiting: int
    running: int
    max_running: int | None = None
    blocked_until: int | None = None
    paused: bool = False
    held_by: str | None = None
    """The task id whose death stopped the partition (``on_dead="hold"``)."""
    worker: str | None = None
    """Who holds an ordered partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInfo:
    """A concurrency limit's key: tasks in workers' hands, and tasks that claims have parked because it was full."""

    key: str
    running: int
    parked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something an operator should know, as ``taskmq doctor`` shows it.

    ``check``  the name of the check that found it, ``durability``
    ``level``  ``error``: tasks are lost or do not run; ``warning``: they may be, or it is not what was meant
    ``text``   what is wrong, ``fix`` what to do about it
    """

    check: str
    level: Literal["error", "warning"]
    text: str
    fix: str


@runtime_checkable
class Transactional(Protocol):
    """A store in a database in which users have transactions of their own."""

    def publish_within(self, params: Publish, connection: Any) -> list[Receipt]:
        """Store the messages in the open transaction of this connection: they exist if and only if it commits.

        Neither commits nor rolls back; waiting workers are woken after the commit. Raises InvalidArgument for a
        connection that is none of this store's database or has no transaction; else what ``publish`` raises, with the
        transaction as it was.
        """
        ...


class Inspect(Protocol):
    """A store as operators use it. Every verb may raise TransportError."""

    def get(self, task_ids: Sequence[str]) -> list[TaskInfo | None]:
        """The tasks of these ids, None for those that are not there."""
        ...

    def find(self, params: Find) -> Found:
        """One page of tasks."""
        ...

    def cancel(self, task_ids: Sequence[str]) -> list[TaskState | None]:
        """Cancel what waits, ask what runs to stop; returns the state each is in now (None: not there)."""
        ...

    def replay(self, task_ids: Sequence[str], queue: str | None = None) -> list[bool]:
        """Queue dead letters again with a new budget, into ``queue`` or their own; False for what is not dead."""
        ...

    def purge(self, task_ids: Sequence[str]) -> int:
        """Delete ended tasks' records now, and the keys that live as long as they; returns how many there were."""
        ...

    def stats(self, queues: Sequence[str] = ()) -> list[QueueStats]:
        """The named queues, or all, ordered by name."""
        ...

    def partitions(self, queue: str, codes: Sequence[str] = (), *, stopped: bool = False) -> list[PartitionInfo]:
        """The live partitions of a queue, or those of these codes, ordered by code.

        ``stopped``: only those that are paused, held by a dead task or blocked until some time.
        """
        ...

    def limits(self, keys: Sequence[str] = ()) -> list[LimitInfo]:
        """The concurrency limits that have tasks running or parked, or those of these keys, ordered by key."""
        ...

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task has ended or is gone (True), at most ``timeout`` seconds (False).

        Woken by an event where the store can, else it looks after 10 ms, then less and less often, up to 250 ms.
        """
        ...

    def now(self) -> int:
        """The store's clock."""
        ...

    def checkup(self) -> list[Finding]:
        """What is wrong with the store itself: its settings, its durability, its files. For ``taskmq doctor``."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """The live workers, ordered by id."""
        ...

    def change_queue(self, queue: str, changes: Mapping[str, Any]) -> QueueConfig:
        """Change these fields of a queue's settings, and no others, in one step; the settings as they are now.

        Raises InvalidArgument for a value that is wrong.
        """
        ...

    def pause_queue(self, queue: str, paused: bool) -> None:
        """Stop or resume claims from a queue."""
        ...

    def delete_queue(self, queue: str) -> bool:
        """Forget a queue, its history and keys; False, and nothing done, while it has unfinished tasks."""
        ...

    def pause_partition(self, queue: str, code: str, paused: bool) -> None:
        """Stop or resume claims from a partition, whether it has tasks now or not."""
        ...

    def release_partition(self, queue: str, code: str) -> bool:
        """Try the dead head of a held partition again, in its place and with a new budget; False if none is held."""
        ...

    def skip_head(self, queue: str, code: str) -> bool:
        """Let an ordered partition go on without its head.

        A held one is freed and its head stays dead; a waiting head (blocked or not) becomes dead, ``reason="skipped"``.
        False, and nothing done, when there is no head or it runs.
        """
        ...

    def flush(self) -> None:
        """Delete everything of this namespace: queues, tasks, history, keys. For tests and operators."""
        ...


# ── the schema of a database ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """Which schema a database has (None: none), which one this version needs, and the steps from one to the other."""

    found: int | None
    needed: int
    steps: Sequence[str]


class Schema(Protocol):
    """The schema of a database that is migrated by hand. Every verb may raise ConfigError or TransportError."""

    def status(self) -> SchemaStatus:
        """What is there and what is needed."""
        ...

    def up(self) -> list[str]:
        """Bring it up to date; what was done."""
        ...

    def down(self, force: bool = False) -> str:
        """Undo the last step, or remove it all; what was done."""
        ...

    def sql(self, found: int | None = None) -> list[str]:
        """The statements of ``up`` from this version; None: from nothing."""
        ...


class Store(Transport, Inspect, Protocol):
    """A complete store: both protocols. What the registry opens and the conformance suite runs on."""
