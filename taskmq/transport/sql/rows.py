"""The rows that pass between the verbs and an engine. Short names are explained in ``tables``.

Rows that an engine reads are made from its columns in this order; rows that it is given to write are structs, which
an engine binds as a tuple or encodes as it likes. What a row means is said here, once, and not by each engine.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from taskmq.policy.order import Key
from taskmq.queue import Limit

Row = dict[str, Any]
"""A row by the names of its columns, for operators."""


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


class ClaimedTask(msgspec.Struct, array_like=True):
    """A task just claimed, as its worker is to have it. ``epoch`` is that of this claim."""

    seq: int
    id: str
    queue_id: int
    handler: str
    handler_id: int
    priority: int
    attempts: int
    max_attempts: int
    epoch: int
    code: str | None
    expires_at: int | None
    deadline_at: int | None
    created_at: int
    body: str
    available_at: int
    version: str | None
    limit_key: str | None


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
    state: int
    replays: int


class Place(NamedTuple):
    """Where a task enters: its lane, READY or PARKED there, and its handler's id; or DUE later, in no lane yet."""

    lane: int | None
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


class Due(NamedTuple):
    """Queues in which something is due, has lost its lease or expired; and whether there are records to delete."""

    queues: list[str]
    records: bool


class Record(NamedTuple):
    """What must be known of an ended task to forget what is kept because of it."""

    id: str
    queue_id: int
    idem_key: str | None
    key_mode: int
    handler_id: int
    priority: int
    state: int


class KeyRow(NamedTuple):
    """An idempotency key that is taken. ``expires_at`` is None where it lives with the task's record."""

    queue_id: int
    idem_key: str
    task_id: str
    digest: str
    expires_at: int | None


# ── what the verbs have written ──


class NewTask(msgspec.Struct, omit_defaults=True):
    """A task to be inserted: all its columns but those that start at their defaults.

    Most tasks have nothing after ``pweight`` (see RARELY_SET).
    """

    seq: int
    id: str
    queue_id: int
    state: int
    lane: int | None
    priority: int
    aging_us: int
    available_at: int
    max_attempts: int
    created_at: int
    handler: str
    handler_id: int
    body: str
    code: str | None = None
    pweight: int | None = None
    pmax: int | None = None
    version: str | None = None
    limit_key: str | None = None
    limit_n: int | None = None
    due_at: int | None = None
    expires_at: int | None = None
    deadline_at: int | None = None
    retention: int | None = None
    idem_key: str | None = None
    key_mode: int = 0
    digest: str | None = None
    tags: str | None = None


class PlainTask(msgspec.Struct, omit_defaults=True):
    """A plain task to be inserted: names, where NewTask has what its queue's row says of them."""

    id: str
    queue: str
    handler: str
    version: str
    priority: int
    available_at: int
    max_attempts: int
    body: str
    code: str | None = None
    pweight: int | None = None
    pmax: int | None = None
    expires_at: int | None = None
    deadline_at: int | None = None
    retention: int | None = None
    tags: str | None = None


RARELY_SET = NewTask.__struct_fields__.index("pmax")
"""From here on, columns of NewTask that most tasks leave at their defaults."""


class FlowValues(msgspec.Struct):
    """A partition's row as it is stored. ``k2, k3`` order the turns behind ``h1``."""

    flow_id: int
    queue_id: int
    code: str
    h1: int | None
    h2: int | None
    hseq: int | None
    hhandler: int | None
    k2: int | None
    k3: int | None
    tag: int
    weight: int
    elig: int
    n_run: int
    n_wait: int
    blocked_until: int | None
    blocked_seq: int | None
    held_by: str | None
    paused: int
    max_running: int | None
    p1: int | None
    p2: int | None
    pseq: int | None


def flow_values(flow: FlowRow, queue_id: int, aging: bool) -> FlowValues:
    """What is stored of a flow."""
    h1, h2, hseq, hhandler = flow.head or (None, None, None, None)
    p1, p2, pseq = (None, None, None) if flow.parked is None else flow.parked[:3]
    return FlowValues(
        flow_id=flow.flow_id,
        queue_id=queue_id,
        code=flow.code,
        h1=h1,
        h2=h2,
        hseq=hseq,
        hhandler=hhandler,
        k2=h2 if aging else flow.tag,
        k3=hseq if aging else 0,
        tag=flow.tag,
        weight=flow.weight,
        elig=flow.live,
        n_run=flow.n_run,
        n_wait=flow.n_wait,
        blocked_until=flow.blocked_until,
        blocked_seq=flow.blocked_seq,
        held_by=flow.held_by,
        paused=flow.paused,
        max_running=flow.max_running,
        p1=p1,
        p2=p2,
        pseq=pseq,
    )


class Entry(NamedTuple):
    """A task that is due enters its lane, READY or PARKED."""

    seq: int
    lane: int
    state: int


class TaskUpdate(msgspec.Struct):
    """A task out of a worker's hands that has not ended. ``attempt_log`` None: nothing new in it."""

    state: int
    due_at: int | None
    retry_at: int | None
    available_at: int
    expires_at: int | None
    attempts: int
    blamed: int
    expiries: int
    attempt_log: str | None
    seq: int


class Success(msgspec.Struct):
    """A task that succeeded, with its result as JSON. ``started_at`` None: as its row has it."""

    seq: int
    started_at: int | None
    result: str | None


class PlainSuccess(Success):
    """A success that is found by its task's id and epoch as well."""

    id: str
    epoch: int


class PlainClaim(msgspec.Struct):
    """What a claim from a plain queue has taken, in order, and what it has seen of the queue."""

    tasks: list[ClaimedTask]
    aging_us: int
    lease_us: int | None
    due_at: int | None
    lease_end: int | None


class Ending(msgspec.Struct):
    """A task that ended otherwise. ``delete_at`` None: nothing is kept of it."""

    seq: int
    state: int
    attempts: int
    attempt_log: str | None
    delete_at: int | None
    reason: str | None
    error: str | None
    traceback: str | None
    started_at: int | None


class Renewal(msgspec.Struct):
    """A lease that goes on. ``progress``: news as JSON, None for no news."""

    seq: int
    due_at: int
    started: bool
    progress: str | None


class CountRow(NamedTuple):
    """How many tasks more there are of a handler, kind (codes.py) and priority."""

    handler_id: int
    kind: int
    priority: int
    more: int
