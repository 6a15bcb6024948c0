"""What a SQL engine must bring: its statements by name, inside one transaction.

The verbs (publish.py, reserve.py, settle.py, leases.py) are written once against ``Session``. A statement takes and
gives plain lists and the row classes below; how it is worded – RETURNING or not, arrays or JSON, one exchange or
two – is the engine's business. Every read that a decision rests on happens under the lock that ``lock_queues`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from taskmq.policy.order import Key
from taskmq.queue import Limit, QueueConfig
from taskmq.transport.base import Capabilities, Find, Finding, LimitInfo, PartitionInfo, QueueStats

T = TypeVar("T")


class QueueRow(msgspec.Struct):
    """A queue's row as locked by ``lock_queues``, with the first due times of what waits in it.

    ``running`` and ``queued`` are counted only where there is a ``max_running`` or ``max_queued``. ``handlers``: JSON
    rows of (handler_id, name, version, keyed).
    """

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
    max_queued: int | None
    queued: int
    rate: str | None
    level: int | None
    level_at: int
    limited: int
    handlers: str
    hold: int
    lease_us: int | None
    due_at: int | None
    unblock_at: int | None
    lease_end: int | None
    expire_at: int | None
    open_at: int | None = None
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
    hhandler: int | None = None
    live: int = 0
    n_run: int = 0
    n_wait: int = 0
    blocked_until: int | None = None
    blocked_seq: int | None = None
    held_by: str | None = None
    paused: int = 0
    max_running: int | None = None
    p1: int | None = None
    p2: int | None = None
    pseq: int | None = None
    new: bool = False
    dirty: bool = False
    gone: bool = False
    ordered: bool = False
    head: Key | None = None
    parked: Key | None = None

    def __post_init__(self) -> None:
        self.ordered = self.code.startswith("!")
        self.head = None if self.h1 is None else (self.h1, self.h2 or 0, self.hseq or 0, self.hhandler or 0)
        self.parked = None if self.p1 is None else (self.p1, self.p2 or 0, self.pseq or 0)

    def eligible(self) -> bool:
        """Whether its head may be claimed now."""
        if self.stopped() or (self.ordered and self.n_run) or self.room() == 0:
            return False
        return self.head is not None and not (self.parked is not None and self.parked < self.head)

    def stopped(self) -> bool:
        """Whether something keeps all of its tasks from being claimed: a pause, a dead head, a delay."""
        return self.blocked_until is not None or self.held_by is not None or bool(self.paused)

    def room(self) -> int | None:
        """How many more of its tasks may run; None: any number."""
        return None if self.max_running is None else max(0, self.max_running - self.n_run)

    def empty(self) -> bool:
        """Whether nothing keeps it: then its row is deleted."""
        return not (self.head or self.n_run or self.n_wait or self.stopped())


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
    pmax: int | None
    retry_at: int | None
    expires_at: int | None
    started_at: int | None
    handler_id: int
    limit_key: str | None
    limit_n: int | None
    rtag: int | None

    @property
    def key(self) -> Key:
        """Its place in its line."""
        return (self.s1, self.s2, self.seq, self.handler_id)

    @property
    def limit(self) -> Limit | None:
        """Its concurrency limit."""
        return None if self.limit_key is None else Limit(self.limit_key, self.limit_n or 1)


class DueTask(NamedTuple):
    """What a promotion needs of a task that is due. ``lane`` is None when it never stood in line."""

    due_at: int
    seq: int
    lane: int | None
    code: str | None
    pweight: int | None
    pmax: int | None
    s1: int
    s2: int
    priority: int
    handler_id: int
    limit_key: str | None
    limit_n: int | None


class DeadLetter(NamedTuple):
    """What a replay needs of a dead task."""

    seq: int
    available_at: int
    queue: str
    queue_id: int
    code: str | None
    pweight: int | None
    pmax: int | None
    priority: int
    handler_id: int
    handler: str
    version: str | None
    limit_key: str | None
    limit_n: int | None
    idem_key: str | None
    key_mode: int
    digest: str | None


class Place(NamedTuple):
    """Where a task enters: its lane, READY or PARKED there, and its handler's id."""

    lane: int
    state: int
    handler_id: int


class ParkedRow(NamedTuple):
    """A line of parked tasks (policy/limits.py)."""

    limit_key: str
    handler_id: int
    n: int
    parked: int
    owed: int
    v: int
    j: int


class Session(Protocol):
    """One transaction: the engine's statements by name. Lists may be empty; then nothing is sent."""

    namespace: str

    # queues
    def lock_queues(self, names: Sequence[str]) -> list[QueueRow]:
        """Lock these queues, in id order, creating those that are new."""
        ...

    def write_queues(self, rows: Sequence[QueueRow]) -> None:
        """Store served, v, j, utag, ulive, flows, level, level_at, open_at and limited."""
        ...

    def add_handler(self, queue_id: int, name: str, version: str, keyed: bool) -> int:
        """A handler that this queue sees for the first time; its id."""
        ...

    def add_counts(self, rows: Sequence[tuple[int, int, int, int]]) -> None:
        """(handler_id, kind, priority, how many more)."""
        ...

    # flows
    def flows_by_code(self, queue_id: int, codes: Sequence[str]) -> list[FlowRow]: ...

    def flows_by_id(self, flow_ids: Sequence[int]) -> list[FlowRow]: ...

    def flows_in_turn(self, queue_id: int, offset: int, limit: int, handler: int | None = None) -> list[FlowRow]:
        """Eligible flows in the order of their turns; only those whose head is of this handler, if it is given."""
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

    def due_tasks(self, queue_id: int, now: int, limit: int) -> list[DueTask]:
        """What is due, in order of (due_at, seq)."""
        ...

    def next_due(self, names: Sequence[str], now: int) -> int | None:
        """When the next task, blocked flow or lease of these queues falls due, or a rate lets the next task start."""
        ...

    def make_ready(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """(seq, lane, state): due tasks enter their lines, or are parked."""
        ...

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

    def renew(self, rows: Sequence[tuple[int, int, bool, str | None]], now: int) -> None:
        """(seq, lease end, started, progress as JSON or None)."""
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

    # concurrency limits
    def limits_of(self, seqs: Sequence[int]) -> dict[int, Limit]:
        """The limits of these tasks, as far as they have one."""
        ...

    def limits_in_line(self, lane: int, first: int) -> list[tuple[int, Limit]]:
        """Handler and limit of the first so many tasks of a line, of those that have one, in order."""
        ...

    def load_limits(self, keys: Sequence[str]) -> tuple[dict[str, int], list[ParkedRow]]:
        """How many tasks of these keys run, and the keys' lines of parked tasks; locked."""
        ...

    def write_limits(self, running: Mapping[str, int], lines: Sequence[ParkedRow]) -> None:
        """Replace what is stored of these keys; a key with nothing running and no line is forgotten."""
        ...

    def owing(self, queue_id: int) -> list[tuple[int, Limit]]:
        """Handler and limit of the lines that are owed a return to this queue, by key, n and handler's name."""
        ...

    def next_parked(self, handler_id: int, limit: Limit) -> TaskRow:
        """The parked task whose turn it is in this line: its partition's first, which has got the tag of the turn."""
        ...

    def last_turn(self, lane: int, handler_id: int, limit: Limit) -> int | None:
        """The greatest tag of a partition's parked tasks in this line."""
        ...

    def first_parked(self, lane: int) -> Key | None:
        """The key of the first parked task of an ordered partition."""
        ...

    def move(self, seqs: Sequence[int], state: int) -> None:
        """Park tasks that stand in line (PARKED), or put them back (READY)."""
        ...

    def write_turns(self, rows: Sequence[tuple[int, int]]) -> None:
        """(seq, tag) of parked tasks."""
        ...

    def held_queues(self, task_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Those of these dead tasks that stop their partitions: id → queue and partition."""
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

    def revive(self, task_id: str, seq: int, queue: QueueRow, place: Place, available_at: int) -> None: ...

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

    def limits(self, keys: Sequence[str]) -> list[LimitInfo]: ...

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
