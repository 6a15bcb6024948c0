"""What a SQL engine must bring: its statements by name, inside one transaction.

The verbs (publish.py, reserve.py, settle.py, leases.py) are written once against ``Session``. A statement takes and
gives plain values and the rows of rows.py; how it is worded – RETURNING or not, arrays or JSON, one exchange or
two – is the engine's business. Every read that a decision rests on happens under the lock that ``lock_queues`` takes.

Locks are taken in one order, so that there is no deadlock by design: ``guard_names`` → queues in id order →
``load_limits`` → everything else. Tasks, flows and counts of a queue are changed under its lock only; what is changed
without it (publishes of an engine that is ``shared``, retention) goes into rows that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from taskmq.clock import Clock
from taskmq.policy.order import Key
from taskmq.queue import Limit, QueueConfig
from taskmq.transport.base import Capabilities, Find, Finding, LimitInfo, PartitionInfo, QueueStats
from taskmq.transport.serving import Keyed
from taskmq.transport.sql.rows import (
    ClaimedTask,
    CountRow,
    DeadLetter,
    Due,
    DueTask,
    Ending,
    Entry,
    FlowRow,
    KeyRow,
    NewTask,
    ParkedRow,
    Place,
    QueueRow,
    Record,
    Renewal,
    Row,
    Success,
    TaskRow,
    TaskUpdate,
)
from taskmq.transport.sql.ways import Promise, Short, Unlocked

T = TypeVar("T")


class Session(Protocol):
    """One transaction: the engine's statements by name. Lists may be empty; then nothing is sent."""

    namespace: str
    batch: int
    """Most tasks that one verb promotes, reaps or expires in a queue."""
    shared: bool
    """Whether other transactions write at the same time; where they cannot, the transaction is the lock."""
    unlocked: Unlocked | None
    """How to publish without locking a queue, where that gains anything."""
    short: Short | None
    """How to claim and settle in one exchange, where there are exchanges."""

    # ── queues ──

    def lock_queues(self, names: Sequence[str], look: int = 0, seqs: Sequence[int] = ()) -> list[QueueRow]:
        """Lock these queues, in id order, creating those that are new.

        ``look``: so many heads of their lines are about to be read, and ``seqs`` are the tasks that are about to be
        asked for with a lock; an engine may bring them in the same exchange.
        """
        ...

    def lock_later(self, names: Sequence[str]) -> None:
        """Lock those of these queues that exist, before the next statement."""
        ...

    def write_queues(self, rows: Sequence[QueueRow]) -> None:
        """Store served, v, j, utag, ulive, flows, level, level_at, open_at and limited."""
        ...

    def add_handler(self, queue_id: int, name: str, version: str, keyed: bool) -> int:
        """Register a handler that this queue sees for the first time; returns its id."""
        ...

    def add_counts(self, rows: Sequence[CountRow]) -> None:
        """Add to the counts of queues that are locked."""
        ...

    # ── without the lock ──

    def add_deltas(self, rows: Sequence[CountRow]) -> None:
        """Add to the counts of queues that are not locked; meets nobody."""
        ...

    def fold_deltas(self, limit: int) -> None:
        """Housekeeping of what ``add_deltas`` leaves."""
        ...

    def guard_names(self, names: Sequence[str]) -> None:
        """Keep publishes out of these queues until the end: they are about to be deleted."""
        ...

    # ── flows ──

    def flows_by_code(self, queue_id: int, codes: Sequence[str]) -> list[FlowRow]:
        """The flows of these codes, as far as they exist."""
        ...

    def flows_by_id(self, flow_ids: Sequence[int]) -> list[FlowRow]:
        """The flows of these ids."""
        ...

    def flows_in_turn(self, queue_id: int, offset: int, limit: int, handler: int | None = None) -> list[FlowRow]:
        """Eligible flows in the order of their turns; only those whose head is of this handler, if it is given."""
        ...

    def flows_due(self, queue_id: int, now: int, limit: int) -> list[FlowRow]:
        """Blocked flows whose time is over, in order of (blocked_until, blocked_seq)."""
        ...

    def write_flows(self, queue_id: int, aging: bool, flows: Sequence[FlowRow]) -> None:
        """Insert, update or delete by each row's ``new`` and ``gone``."""
        ...

    # ── lines ──

    def line(self, lane: int, offset: int, limit: int) -> list[Key]:
        """Keys of a lane's waiting tasks, in order."""
        ...

    def heads(self, lanes: Sequence[int], offset: int, limit: int) -> dict[int, list[Key]]:
        """The same for many lanes in one exchange; lanes without waiting tasks may be missing."""
        ...

    # ── tasks ──

    def next_seqs(self, count: int) -> Sequence[int]:
        """So many new sequence numbers, ascending."""
        ...

    def spare_flow_id(self) -> int:
        """An id for a flow that no task gives birth to: beyond every seq."""
        ...

    def insert_tasks(self, rows: Sequence[NewTask]) -> None:
        """Store new tasks."""
        ...

    def known_ids(self, ids: Sequence[str]) -> set[str]:
        """Which of these tasks exist, ended or not."""
        ...

    def due_tasks(self, queue_id: int, now: int, limit: int) -> list[DueTask]:
        """What is due, in order of (due_at, seq)."""
        ...

    def next_due(self, names: Sequence[str], now: int) -> Promise[int | None]:
        """When the next task, blocked flow or lease of these queues falls due, or a rate lets the next task start."""
        ...

    def make_ready(self, rows: Sequence[Entry]) -> None:
        """Due tasks enter their lines, or are parked."""
        ...

    def claim(
        self, picks: Sequence[tuple[int, int | None]], worker: str, until: int, batch: int
    ) -> Promise[list[ClaimedTask]]:
        """Mark (seq, run_lane) as running in this order; gives them in any order."""
        ...

    def tasks_by_seq(self, seqs: Sequence[int], *, lock: bool = False) -> list[TaskRow]:
        """Tasks of this namespace by seq, in any state.

        ``lock``: nobody takes them away before the end (short.py); where there is no short way, their queue's lock sees
        to that already.
        """
        ...

    def run_mates(self, lanes: Sequence[int]) -> list[TaskRow]:
        """Running tasks of these lanes that were claimed in runs longer than one, in order of their keys."""
        ...

    def ended_leases(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Running tasks whose lease is over, in order of (lease end, seq); those that end together stay together.

        They are locked; what somebody else has locked is left out, for it ends just now (short.py).
        """
        ...

    def first_in_hands(self, queue_id: int, batches: Sequence[int]) -> list[int]:
        """Seqs of the first running task of each of these batches, and of each run claimed in one of them."""
        ...

    def expired(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Waiting tasks that were not started in time, earliest first."""
        ...

    def attempt_logs(self, seqs: Sequence[int]) -> dict[int, str | None]:
        """The histories of failed attempts, JSON."""
        ...

    def update_tasks(self, rows: Sequence[TaskUpdate]) -> None:
        """Out of a worker's hands, but not ended."""
        ...

    def renew(self, rows: Sequence[Renewal], now: int) -> None:
        """New lease ends; marks what is known to be started."""
        ...

    def succeed(self, rows: Sequence[Success], now: int, keep: int) -> None:
        """Move tasks that succeeded to the history. ``keep``: the default retention."""
        ...

    def finish(self, rows: Sequence[Ending], now: int) -> None:
        """Move other tasks to the history."""
        ...

    # ── idempotency keys ──

    def find_keys(self, pairs: Sequence[tuple[int, str]]) -> list[KeyRow]:
        """Who has these (queue_id, key), as far as they are taken."""
        ...

    def write_keys(self, rows: Sequence[KeyRow]) -> None:
        """Take keys, from whoever has them."""
        ...

    def free_keys(self, rows: Sequence[tuple[int, str, str]]) -> None:
        """Free (queue_id, key) where this task id has it."""
        ...

    # ── concurrency limits ──

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

    # ── operators ──

    def queue_configs(self, names: Sequence[str]) -> dict[str, QueueConfig]:
        """The settings of those of these queues that were configured."""
        ...

    def configure(self, queue_id: int, config: QueueConfig) -> None:
        """Store settings. A new rate starts with a full bucket."""
        ...

    def close(self, queue_id: int) -> None:
        """Let the queue take nothing more; ``configure`` opens it again."""
        ...

    def pause(self, queue: str, paused: bool) -> None:
        """Stop or resume claims from a queue, new or not."""
        ...

    def unfinished(self, task_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Seq and queue name of tasks that have not ended."""
        ...

    def request_cancel(self, seq: int) -> None:
        """Ask a running task to stop."""
        ...

    def dead_queues(self, task_ids: Sequence[str]) -> set[str]:
        """The queues of those of these tasks that are dead letters; not locked."""
        ...

    def dead_letter(self, task_id: str) -> DeadLetter | None:
        """A task that failed for good; locked."""
        ...

    def revive(self, task_id: str, seq: int, queue: QueueRow, place: Place, available_at: int) -> None:
        """Out of the history and into its place, with a new budget."""
        ...

    def held_queues(self, task_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Those of these dead tasks that stop their partitions: id → queue and partition."""
        ...

    def delete_queue(self, queue: str) -> bool:
        """Delete the queue and all that is kept for it; False while it has unfinished tasks."""
        ...

    def flush(self) -> None:
        """Delete everything of the namespace."""
        ...

    # ── retention, named leases, workers ──

    def take_old_records(self, now: int, limit: int) -> list[Record]:
        """Delete ended tasks whose retention is over; returns those that this transaction deleted."""
        ...

    def take_records(self, task_ids: Sequence[str]) -> list[Record]:
        """Delete these ended tasks; returns those that this transaction deleted."""
        ...

    def delete_old_keys(self, now: int, limit: int) -> int:
        """Delete keys whose own time is over; how many."""
        ...

    def delete_old_workers(self, now: int) -> None:
        """Delete workers that were not heard of in time."""
        ...

    def take_lock(self, name: str, owner: str, now: int, ttl: int) -> bool:
        """Take or renew a named lease; False while another owner holds it."""
        ...

    def drop_lock(self, name: str, owner: str) -> None:
        """Give a named lease back."""
        ...

    def write_worker(self, worker_id: str, info: str, until: int) -> None:
        """A worker's row, JSON."""
        ...

    def forget_worker(self, worker_id: str) -> None:
        """Remove a worker's row."""
        ...


class Queries(Protocol):
    """Reads for operators, from what is committed; nothing is decided on them."""

    def by_id(self, task_ids: Sequence[str]) -> list[Row]:
        """Rows as ``inspect.task_info`` takes them."""
        ...

    def held_by(self, worker: str) -> list[Row]:
        """What a worker or session holds; rows as of ``by_id``."""
        ...

    def keyed(self, queue: str, keys: Sequence[str], now: int) -> dict[str, Keyed]:
        """Who has these idempotency keys."""
        ...

    def find(self, params: Find, now: int) -> list[Row]:
        """One page, newest first; one row more than ``params.limit`` when there is a next one."""
        ...

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        """The named queues, or all, ordered by name."""
        ...

    def partitions(self, queue: str, codes: Sequence[str], stopped: bool) -> list[PartitionInfo]:
        """The live partitions, or those of these codes, ordered by code."""
        ...

    def workers(self, now: int) -> list[str]:
        """The live workers' rows, JSON."""
        ...

    def limits(self, keys: Sequence[str]) -> list[LimitInfo]:
        """Concurrency limits with tasks running or parked, or those of these keys."""
        ...

    def due(self, now: int) -> Due:
        """What housekeeping would find to do; a look that writes nothing."""
        ...


class Engine(Protocol):
    """A database that is open: how work reaches it, and how an idle worker hears of it."""

    name: str
    capabilities: Capabilities
    clock: Clock
    """The store's clock."""

    @property
    def batch(self) -> int:
        """That of its sessions."""
        ...

    @property
    def short(self) -> bool:
        """Whether its sessions know the short way."""
        ...

    def write(self, work: Callable[[Session], T], *, vital: bool = False) -> T:
        """Run ``work`` in a transaction; returns when it is committed. It may be run again after a conflict.

        ``vital``: it keeps a lease alive, so it must not wait for the others' turn.
        """
        ...

    def within(self, connection: object, queues: Sequence[str], work: Callable[[Session], T]) -> T:
        """Run ``work`` in the open transaction of a user's connection, undo it there if it fails, commit nothing.

        Whoever waits for these queues is woken when the user commits. Raises InvalidArgument for what is no such
        connection.
        """
        ...

    def read(self, work: Callable[[Queries], T]) -> T:
        """Run ``work`` on what is committed."""
        ...

    def signal(self, queues: Iterable[str] | None = None) -> None:
        """Say that this process has committed what may make tasks of these queues (None: of any) claimable.

        No queues: tasks have ended, which makes none claimable.
        """
        ...

    def wait(self, queues: Sequence[str], timeout: float, now: Callable[[], int]) -> bool:
        """Block until something of these queues can be claimed."""
        ...

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task is among the ended ones or gone."""
        ...

    def checkup(self) -> list[Finding]:
        """What is wrong with the database and its settings."""
        ...

    def wake(self) -> None:
        """Make every wait return."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...
