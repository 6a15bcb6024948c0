"""What a SQL engine must bring: its statements by name, inside one transaction.

The verbs (publish.py, reserve.py, settle.py, leases.py) are written once against ``Session``. A statement takes and
gives plain lists and the row classes below; how it is worded – RETURNING or not, arrays or JSON, one exchange or
two – is the engine's business. Every read that a decision rests on happens under the lock that ``lock_queues`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from taskmq.policy.order import Key
from taskmq.queue import QueueConfig
from taskmq.transport.base import Capabilities, Find, Finding, PartitionInfo, QueueStats

T = TypeVar("T")


class QueueRow(msgspec.Struct):
    """A queue's row as locked by ``lock_queues``, with the first due times of what waits in it."""

    queue_id: int
    name: str
    aging_us: int
    weight: float
    served: float
    v: int
    j: int
    utag: int
    ulive: int
    flows: int
    paused: int
    max_running: int | None
    running: int
    hold: int
    lease_us: int | None
    due_at: int | None
    unblock_at: int | None
    lease_end: int | None
    expire_at: int | None
    dirty: bool = False


class FlowRow(msgspec.Struct, array_like=True):
    """A partition's row, then what a transaction makes of it. ``live`` is the column ``elig``."""

    flow_id: int
    code: str
    weight: int = 1
    tag: int = 0
    h1: int | None = None
    h2: int | None = None
    hseq: int | None = None
    live: int = 0
    n_run: int = 0
    n_wait: int = 0
    blocked_until: int | None = None
    blocked_seq: int | None = None
    held_by: str | None = None
    paused: int = 0
    new: bool = False
    dirty: bool = False
    gone: bool = False
    ordered: bool = False
    head: Key | None = None

    def __post_init__(self) -> None:
        self.ordered = self.code.startswith("!")
        self.head = None if self.h1 is None else (self.h1, self.h2 or 0, self.hseq or 0)

    def eligible(self) -> bool:
        """Whether its head may be claimed now."""
        free = self.blocked_until is None and self.held_by is None and not self.paused
        return self.head is not None and free and not (self.ordered and self.n_run)

    def empty(self) -> bool:
        """Whether nothing keeps it: then its row is deleted."""
        stopped = self.blocked_until is not None or self.held_by is not None or self.paused
        return not (self.head or self.n_run or self.n_wait or stopped)


class TaskRow(msgspec.Struct, array_like=True):
    """A task in a worker's hands, or about to be dropped, as settle, extend and reap need it.

    ``lane`` and ``due_at`` are 0 where the column is NULL.
    """

    seq: int
    id: str
    queue_id: int
    state: int
    lane: int
    code: str | None
    s1: int
    s2: int
    priority: int
    available_at: int
    due_at: int
    epoch: int
    attempts: int
    max_attempts: int
    blamed: int
    expiries: int
    batch: int | None
    position: int | None
    run_lane: int | None
    started: int
    worker: str | None
    cancel_requested: int
    deadline_at: int | None
    retention: int | None
    idem_key: str | None
    key_mode: int
    pweight: int | None
    retry_at: int | None
    expires_at: int | None
    started_at: int | None

    @property
    def key(self) -> Key:
        """Its place in its line."""
        return (self.s1, self.s2, self.seq)


class DeadLetter(NamedTuple):
    """What a replay needs of a dead task."""

    seq: int
    available_at: int
    queue: str
    queue_id: int
    code: str | None
    pweight: int | None
    priority: int
    idem_key: str | None
    key_mode: int


class Session(Protocol):
    """One transaction: the engine's statements by name. Lists may be empty; then nothing is sent."""

    namespace: str

    # queues
    def lock_queues(self, names: Sequence[str]) -> list[QueueRow]:
        """Lock these queues, in id order, creating those that are new."""
        ...

    def write_queues(self, rows: Sequence[QueueRow]) -> None:
        """Store served, v, j, utag, ulive, running and flows."""
        ...

    # flows
    def flows_by_code(self, queue_id: int, codes: Sequence[str]) -> list[FlowRow]: ...

    def flows_by_id(self, flow_ids: Sequence[int]) -> list[FlowRow]: ...

    def flows_in_turn(self, queue_id: int, offset: int, limit: int) -> list[FlowRow]:
        """Eligible flows in the order of their turns."""
        ...

    def flows_due(self, queue_id: int, now: int, limit: int) -> list[FlowRow]:
        """Blocked flows whose time is over, in order of (blocked_until, blocked_seq)."""
        ...

    def write_flows(self, queue_id: int, aging: bool, flows: Sequence[FlowRow]) -> None:
        """Insert, update or delete by each row's ``new`` and ``gone``."""
        ...

    # lines
    def line(self, lane: int, offset: int, limit: int) -> list[Key]:
        """Keys of a lane's waiting tasks, in order."""
        ...

    def heads(self, lanes: Sequence[int], offset: int, limit: int) -> dict[int, list[Key]]:
        """The same for many lanes in one exchange; lanes without waiting tasks may be missing."""
        ...

    # tasks
    def next_seq(self) -> int:
        """The seq of the next task; the caller numbers on from it."""
        ...

    def spare_flow_id(self) -> int:
        """An id for a flow that no task gives birth to: beyond every seq."""
        ...

    def insert_tasks(self, rows: Sequence[Sequence[Any]]) -> None:
        """Columns as in ``publish.COLUMNS``."""
        ...

    def known_ids(self, ids: Sequence[str]) -> set[str]:
        """Which of these tasks exist, ended or not."""
        ...

    def due_tasks(self, queue_id: int, now: int, limit: int) -> list[tuple[Any, ...]]:
        """(due_at, seq, lane, code, pweight, s1, s2) of what is due, in order of (due_at, seq)."""
        ...

    def next_due(self, queue_ids: Sequence[int]) -> int | None:
        """When the next task, blocked flow or lease of these queues falls due."""
        ...

    def make_ready(self, seq_lanes: Sequence[tuple[int, int]]) -> None: ...

    def claim(self, picks: Sequence[tuple[int, int | None]], worker: str, until: int, batch: int) -> list[list[Any]]:
        """Mark (seq, run_lane) as running in this order; rows of ``reserve.CLAIMED`` in the same order."""
        ...

    def tasks_by_seq(self, seqs: Sequence[int]) -> list[TaskRow]:
        """Tasks by seq, in any state."""
        ...

    def run_mates(self, lanes: Sequence[int]) -> list[TaskRow]:
        """Running tasks of these lanes that were claimed in runs longer than one, in order of their keys."""
        ...

    def ended_leases(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Running tasks whose lease is over, in order of (lease end, seq); those that end together stay together."""
        ...

    def first_in_hands(self, queue_id: int, batches: Sequence[int]) -> list[int]:
        """Seqs of the first running task of each of these batches, and of each run claimed in one of them."""
        ...

    def expired(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Waiting tasks that were not started in time, earliest first."""
        ...

    def attempt_logs(self, seqs: Sequence[int]) -> dict[int, str | None]: ...

    def update_tasks(self, rows: Sequence[Sequence[Any]]) -> None:
        """Columns as in ``settle.UPDATED``, then seq: out of a worker's hands, but not ended."""
        ...

    def renew(self, rows: Sequence[tuple[int, int, bool]], now: int) -> None:
        """(seq, lease end, started)."""
        ...

    def succeed(self, rows: Sequence[tuple[int, int | None, str | None]], now: int, keep: int) -> None:
        """Move tasks that succeeded to the history: (seq, started_at, result). ``keep``: the default retention."""
        ...

    def finish(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        """Move other tasks to the history; columns as in ``settle.FINISHED``."""
        ...

    # idempotency keys
    def find_keys(self, pairs: Sequence[tuple[int, str]]) -> list[tuple[int, str, str, str, int | None]]:
        """(queue_id, key, task id, digest, expires_at)."""
        ...

    def write_keys(self, rows: Sequence[tuple[int, str, str, str, int | None]]) -> None: ...

    def free_keys(self, rows: Sequence[tuple[int, str, str]]) -> None:
        """(queue_id, key, task id)."""
        ...

    # settings, operators, housekeeping
    def queue_configs(self, names: Sequence[str]) -> dict[str, QueueConfig]: ...

    def configure(self, queue_id: int, config: QueueConfig) -> None: ...

    def pause(self, queue: str, paused: bool) -> None: ...

    def unfinished(self, task_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Seq and queue name of tasks that have not ended."""
        ...

    def request_cancel(self, seq: int) -> None: ...

    def dead_letter(self, task_id: str) -> DeadLetter | None: ...

    def revive(self, task_id: str, seq: int, queue: QueueRow, lane: int, available_at: int) -> None: ...

    def delete_queue(self, queue: str) -> bool:
        """Delete the queue and all that is kept for it; False while it has unfinished tasks."""
        ...

    def purge(self, task_ids: Sequence[str]) -> int: ...

    def delete_old(self, now: int, limit: int) -> int: ...

    def take_lock(self, name: str, owner: str, now: int, ttl: int) -> bool: ...

    def drop_lock(self, name: str, owner: str) -> None: ...

    def write_worker(self, worker_id: str, info: str, until: int) -> None: ...

    def forget_worker(self, worker_id: str) -> None: ...

    def flush(self) -> None: ...


class Due(NamedTuple):
    """Queues in which something is due, has lost its lease or expired; and whether there are records to delete."""

    queues: list[str]
    records: bool


class Queries(Protocol):
    """Reads for operators, from what is committed; nothing is decided on them."""

    def by_id(self, task_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Rows as ``inspect.task_info`` takes them."""
        ...

    def find(self, params: Find, now: int) -> list[dict[str, Any]]:
        """One row more than ``params.limit`` when there is a next page."""
        ...

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]: ...

    def partitions(self, queue: str, codes: Sequence[str], stopped: bool) -> list[PartitionInfo]: ...

    def workers(self, now: int) -> list[str]: ...

    def due(self, now: int) -> Due:
        """What housekeeping would find to do; a look that writes nothing."""
        ...


class Engine(Protocol):
    """A database that is open: how work reaches it, and how an idle worker hears of it."""

    name: str
    capabilities: Capabilities

    def write(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in a transaction; returns when it is committed. It may be run again after a conflict."""
        ...

    def read(self, work: Callable[[Queries], T]) -> T: ...

    def signal(self) -> None:
        """Say that this process has committed something that may make tasks claimable."""
        ...

    def wait(self, queues: Sequence[str], timeout: float, now: Callable[[], int]) -> bool: ...

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task is among the ended ones or gone."""
        ...

    def checkup(self) -> list[Finding]: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...
