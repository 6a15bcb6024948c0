"""The schema, once, for all SQL engines.

``tasks`` holds unfinished tasks only; an ended task moves to ``history`` in the transaction that ends it, so a
million finished tasks slow nothing. ``flows`` has a row for each partition with something in line, running, retrying
or blocked; all unpartitioned tasks of a queue are one flow too, kept as ``utag`` and ``ulive`` on the queue, so plain
publishes and acks touch no shared row.

A line is ``(lane, s1, s2, seq)``: the sort key of model.md §4 within a lane. ``lane`` is the flow's id, or minus the
handler's id for unpartitioned tasks – a line per handler, so that a claim finds the first task it can run – or NULL
while a task waits for its first due time (an unborn partition has no row). A flow's id is the ``seq`` of the task that
gave birth to it: unique without a second counter.

Short names, here and in rows.py
    s1 s2 seq        a task's sort key: its place in its line
    h1 h2 hseq       the sort key of a flow's first task, ``hhandler`` its handler
    p1 p2 pseq       the sort key of an ordered flow's first parked task
    k2 k3            the order of the flows' turns behind h1
    v j              a queue's virtual time and join counter (policy/turns.py)
    utag ulive       tag of the unpartitioned flow, and whether it has joined
    elig             a flow whose head may be claimed; ``n_run`` ``n_wait`` its tasks running, and waiting aside
    pweight pmax     what a task brings to its partition: weight and max_running

``taskmq_count_deltas`` exists where transactions write at the same time: what a publish counts without the lock of
its queue goes there, into one of a few rows, so that publishers meet neither one another nor the claims. The truth
is the sum of both tables.

Times are microseconds since the epoch. No foreign keys. Importing this module imports SQLAlchemy: it is needed to
create and migrate a database, not to use one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Computed,
    Double,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

metadata = MetaData()

_Big = BigInteger().with_variant(Integer, "sqlite")


def _bytes(length: int) -> TypeEngine[str]:
    """Text that is compared and ordered as bytes."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def _index(
    name: str,
    *columns: ColumnElement[Any] | Column[Any],
    where: str | None = None,
    unique: bool = False,
    shared: bool | None = None,
) -> None:
    """An index over the rows of interest only, where the engine has such.

    ``shared``: only for engines whose transactions write at the same time, or only for the other ones.
    """
    only = None if where is None else text(where)
    Index(name, *columns, unique=unique, sqlite_where=only, postgresql_where=only, info={"shared": shared})


def _flag(name: str, comment: str) -> Column[int]:
    return Column(name, SmallInteger, nullable=False, server_default="0", comment=comment)


def _count(name: str, comment: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default="0", comment=comment)


def _big(name: str, comment: str, *, null: bool = True) -> Column[int]:
    default = None if null else "0"
    return Column(name, _Big, nullable=null, server_default=default, comment=comment)


queues = Table(
    "taskmq_queues",
    metadata,
    Column("queue_id", Integer, primary_key=True, comment="small number that tasks carry"),
    Column("namespace", _bytes(64), nullable=False, comment="tenant of the server, prefix of the library"),
    Column("name", _bytes(128), nullable=False),
    Column("aging_us", _Big, nullable=False, server_default="0", comment="worth of a priority level; 0: strict order"),
    Column("weight", Double, nullable=False, server_default="1", comment="share among queues of one band"),
    Column("served", Double, nullable=False, server_default="0", comment="tasks claimed, as the clamp left it"),
    _big("v", "virtual time of the turns between flows", null=False),
    _big("j", "join counter of the flows", null=False),
    _big("utag", "tag of the unpartitioned flow", null=False),
    _flag("ulive", "the unpartitioned flow has joined"),
    _count("flows", "its rows in taskmq_flows"),
    _flag("paused", "nothing is claimed"),
    Column("max_running", Integer, comment="most tasks in workers' hands; NULL: no limit"),
    Column("max_queued", Integer, comment="most tasks that wait or are due later; NULL: no limit"),
    Column("rate", Text, comment="count, microseconds, burst as JSON; NULL: no rate"),
    _big("level", "of the rate's bucket at level_at; NULL: full"),
    _big("level_at", "when the level was taken", null=False),
    _big("open_at", "when the rate lets the next task start; NULL: now"),
    _flag("limited", "it has seen a task with a concurrency limit"),
    _flag("hold", "a dead task stops its ordered partition"),
    _big("lease_us", "lease of a delivery; NULL: the worker's"),
    Column("config", Text, comment="settings as configured, JSON; NULL: never configured"),
    UniqueConstraint("namespace", "name", name="uq_taskmq_queues_name"),
    comment="queues: settings, service and virtual time",
    sqlite_strict=True,
)

handlers = Table(
    "taskmq_handlers",
    metadata,
    Column("handler_id", Integer, primary_key=True, comment="small number that tasks carry"),
    Column("queue_id", Integer, nullable=False),
    Column("name", _bytes(128), nullable=False),
    Column("version", _bytes(64), nullable=False),
    _flag("keyed", "its tasks have a concurrency limit: one that has none counts as another handler"),
    UniqueConstraint("queue_id", "name", "version", "keyed", name="uq_taskmq_handlers_name"),
    comment="what a claim must be able to run, for each queue",
    sqlite_strict=True,
)

counts = Table(
    "taskmq_counts",
    metadata,
    Column("handler_id", Integer, primary_key=True, autoincrement=False),
    Column("kind", SmallInteger, primary_key=True, autoincrement=False, comment="see codes.py"),
    Column("priority", SmallInteger, primary_key=True, autoincrement=False),
    Column("n", _Big, nullable=False),
    comment="how many tasks there are, so that nobody counts them",
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

count_deltas = Table(
    "taskmq_count_deltas",
    metadata,
    Column("handler_id", Integer, primary_key=True, autoincrement=False),
    Column("kind", SmallInteger, primary_key=True, autoincrement=False, comment="see codes.py"),
    Column("priority", SmallInteger, primary_key=True, autoincrement=False),
    Column("slot", SmallInteger, primary_key=True, autoincrement=False, comment="so that writers do not meet"),
    Column("n", _Big, nullable=False),
    comment="to be added to taskmq_counts: what was written without the lock of a queue",
    info={"shared": True},
)

limits = Table(
    "taskmq_limits",
    metadata,
    Column("namespace", _bytes(64), primary_key=True),
    Column("limit_key", _bytes(512), primary_key=True),
    Column("running", Integer, nullable=False, comment="its tasks in workers' hands"),
    comment="concurrency limits with tasks running or parked",
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

parked = Table(
    "taskmq_parked",
    metadata,
    Column("namespace", _bytes(64), primary_key=True),
    Column("limit_key", _bytes(512), primary_key=True),
    Column("handler_id", Integer, primary_key=True, autoincrement=False),
    Column("n", Integer, primary_key=True, autoincrement=False, comment="the limit that these tasks have"),
    Column("parked", Integer, nullable=False, comment="how many tasks are parked"),
    Column("owed", Integer, nullable=False, comment="how many of them are to return to their lines"),
    Column("v", _Big, nullable=False, comment="virtual time of the turns between their partitions"),
    Column("j", _Big, nullable=False, comment="join counter of their partitions"),
    comment="parked tasks by key, handler of a queue and limit (policy/limits.py)",
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
_index("ix_taskmq_parked_owed", parked.c.handler_id, where="owed>0")

flows = Table(
    "taskmq_flows",
    metadata,
    Column("flow_id", _Big, primary_key=True, autoincrement=False, comment="seq of the task that gave birth to it"),
    Column("queue_id", Integer, nullable=False),
    Column("code", _bytes(255), nullable=False, comment="partition code; ordered when it starts with !"),
    Column("weight", Integer, nullable=False, server_default="1"),
    _big("tag", "virtual tag: the smallest goes next", null=False),
    _big("h1", "sort key of the first task in line"),
    _big("h2", "sort key, second part"),
    _big("hseq", "sort key, third part: seq"),
    Column("hhandler", Integer, comment="its handler_id"),
    _big("k2", "order of turns after h1: tag, or h2 in an aging queue"),
    _big("k3", "order of turns, third part"),
    _flag("elig", "its head may be claimed now"),
    _count("n_run", "its tasks in workers' hands"),
    _count("n_wait", "its tasks that wait outside the line: for a retry, or parked"),
    Column("max_running", Integer, comment="most of its tasks in workers' hands; NULL: no limit"),
    _big("p1", "sort key of the first parked task of an ordered partition: nothing behind it may start"),
    _big("p2", "sort key, second part"),
    _big("pseq", "sort key, third part: seq"),
    _big("blocked_until", "nothing of it starts before"),
    _big("blocked_seq", "seq of the task that blocked it"),
    Column("held_by", _bytes(32), comment="the dead task that stops it"),
    _flag("paused", "an operator stopped it"),
    UniqueConstraint("queue_id", "code", name="uq_taskmq_flows_code"),
    comment="partitions with something in line, running, retrying or blocked",
    sqlite_strict=True,
)
_index(
    "ix_taskmq_flows_turn",
    flows.c.queue_id,
    flows.c.h1,
    flows.c.k2,
    flows.c.k3,
    flows.c.code,
    where="elig=1",
)
_index(
    "ix_taskmq_flows_handler",
    flows.c.queue_id,
    flows.c.hhandler,
    flows.c.h1,
    flows.c.k2,
    flows.c.k3,
    flows.c.code,
    where="elig=1",
    shared=False,
)
# A handler belongs to one queue. With the queue in front, a planner may take the index of all turns, and walk what
# others are to run.
_index(
    "ix_taskmq_flows_of_handler",
    flows.c.hhandler,
    flows.c.h1,
    flows.c.k2,
    flows.c.k3,
    flows.c.code,
    where="elig=1",
    shared=True,
)
_index(
    "ix_taskmq_flows_due",
    flows.c.queue_id,
    flows.c.blocked_until,
    flows.c.blocked_seq,
    where="blocked_until IS NOT NULL",
)

tasks = Table(
    "taskmq_tasks",
    metadata,
    Column("seq", _Big, primary_key=True, autoincrement=True, comment="order of acceptance; never reused"),
    Column("id", _bytes(32), nullable=False, comment="public id, UUIDv7"),
    Column("queue_id", Integer, nullable=False),
    Column("state", SmallInteger, nullable=False, comment="0 due later, 1 ready, 2 running, 3 parked"),
    _big("lane", "flow_id, minus handler_id when unpartitioned, NULL before the first due time"),
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    Column("aging_us", _Big, nullable=False, server_default="0", comment="copied from the queue"),
    Column("available_at", _Big, nullable=False, comment="earliest start"),
    Column(
        "dispatch_at",
        _Big,
        Computed("available_at - priority * aging_us", persisted=True),
        comment="order in an aging queue; equals available_at in a strict one",
    ),
    Column(
        "s1",
        _Big,
        Computed(
            "CASE WHEN aging_us > 0 THEN available_at - priority * aging_us ELSE 9 - priority END", persisted=True
        ),
        comment="order in line, first part",
    ),
    Column(
        "s2",
        SmallInteger,
        Computed("CASE WHEN aging_us > 0 THEN priority ELSE 0 END", persisted=True),
        comment="order in line, second part",
    ),
    _big("due_at", "state 0: when it falls due; state 2: end of the lease"),
    _big("retry_at", "end of the last retry's or defer's delay"),
    Column("code", _bytes(255), comment="partition code"),
    Column("pweight", Integer, comment="partition weight that it brings along"),
    Column("pmax", Integer, comment="partition's max_running that it brings along"),
    _count("epoch", "claims so far: the fencing token"),
    _count("attempts", "executions that were started and have ended"),
    Column("max_attempts", Integer, nullable=False),
    _count("blamed", "leases that ended while it was taken for started"),
    _count("expiries", "leases that ended"),
    _big("batch", "the claim that took it; below 0: a reservation, minus its time"),
    Column("position", Integer, comment="its place in that claim"),
    _big("run_lane", "lane, while it is claimed in a run longer than one"),
    _flag("started", "known to have been started in this epoch"),
    _big("started_at", "first known start of this epoch"),
    Column("worker", _bytes(128)),
    _flag("cancel_requested", "end as CANCELLED unless it succeeds"),
    _count("replays", "times it came back from the dead letters"),
    Column("created_at", _Big, nullable=False),
    _big("expires_at", "must be started before"),
    _big("deadline_at", "must be finished before"),
    _big("retention", "microseconds to keep the record once ended; NULL: the default of its end"),
    Column("handler", _bytes(128), nullable=False),
    Column("handler_id", Integer, nullable=False),
    Column("version", _bytes(64), comment="of the handler"),
    Column("limit_key", _bytes(512), comment="its concurrency limit"),
    Column("limit_n", Integer, comment="most running tasks of that key"),
    _big("rtag", "turn of its return, once it was parked"),
    Column("progress", Text, comment="what the running handler says of itself, JSON"),
    Column("idem_key", _bytes(512), comment="idempotency key"),
    Column("digest", _bytes(32), comment="hash of the content, where there is a key: a replay takes it again"),
    _flag("key_mode", "0: key lives as long as the record, 1: until the end, 2: by its own time"),
    Column("tags", Text, comment="JSON array"),
    Column("attempt_log", Text, comment="JSON array of failed attempts"),
    Column("body", Text, nullable=False, comment="envelope: arguments and options, JSON"),
    CheckConstraint("priority BETWEEN 0 AND 9", name="ck_taskmq_tasks_priority"),
    CheckConstraint("state BETWEEN 0 AND 3", name="ck_taskmq_tasks_state"),
    comment="unfinished tasks",
    sqlite_strict=True,
    sqlite_autoincrement=True,
)
_index("ix_taskmq_tasks_id", tasks.c.id, unique=True)
_index(
    "ix_taskmq_tasks_line",
    tasks.c.lane,
    tasks.c.s1,
    tasks.c.s2,
    tasks.c.seq,
    tasks.c.handler_id,
    where="state=1",
)
# Parked tasks: the turns of a line, the first task of a partition in it, and the last turn of that partition.
_PARKED_LINE = (tasks.c.handler_id, tasks.c.limit_key, tasks.c.limit_n)
_KEY = (tasks.c.s1, tasks.c.s2)
_IS_PARKED = "state=3"
_index("ix_taskmq_tasks_parked", *_PARKED_LINE, *_KEY, tasks.c.rtag, tasks.c.seq, where=_IS_PARKED)
_index("ix_taskmq_tasks_parked_first", tasks.c.lane, *_PARKED_LINE, *_KEY, tasks.c.seq, where=_IS_PARKED)
_index("ix_taskmq_tasks_parked_last", tasks.c.lane, *_PARKED_LINE, tasks.c.rtag, where=_IS_PARKED)
_index("ix_taskmq_tasks_retry", tasks.c.queue_id, tasks.c.retry_at, where="retry_at IS NOT NULL AND state=1")
_index("ix_taskmq_tasks_due", tasks.c.queue_id, tasks.c.due_at, tasks.c.seq, where="state=0")
_index("ix_taskmq_tasks_lease", tasks.c.queue_id, tasks.c.due_at, where="state=2")
_index("ix_taskmq_tasks_run", tasks.c.run_lane, where="run_lane IS NOT NULL")
_index(
    "ix_taskmq_tasks_expiry",
    tasks.c.queue_id,
    tasks.c.expires_at,
    where="expires_at IS NOT NULL AND state<>2",
)

history = Table(
    "taskmq_history",
    metadata,
    Column("id", _bytes(32), primary_key=True),
    Column("queue_id", Integer, nullable=False),
    Column("state", SmallInteger, nullable=False, comment="4 succeeded, 5 failed, 6 cancelled, 7 expired"),
    Column("seq", _Big, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("aging_us", _Big, nullable=False),
    Column("available_at", _Big, nullable=False),
    Column("code", _bytes(255)),
    Column("pweight", Integer),
    Column("pmax", Integer),
    Column("epoch", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("replays", Integer, nullable=False),
    Column("created_at", _Big, nullable=False),
    _big("started_at", "start of the execution that ended it"),
    Column("worker", _bytes(128), comment="who ran it"),
    Column("finished_at", _Big, nullable=False),
    Column("delete_at", _Big, nullable=False, comment="end of its retention"),
    _big("retention", "as in tasks"),
    Column("handler", _bytes(128), nullable=False),
    Column("handler_id", Integer, nullable=False),
    Column("version", _bytes(64)),
    Column("limit_key", _bytes(512)),
    Column("limit_n", Integer),
    Column("progress", Text),
    Column("idem_key", _bytes(512)),
    Column("digest", _bytes(32)),
    _flag("key_mode", "as in tasks"),
    Column("tags", Text),
    Column("attempt_log", Text),
    Column("reason", _bytes(128), comment="why it is dead"),
    Column("error", Text),
    Column("traceback", Text),
    Column("result", Text, comment="JSON"),
    Column("body", Text, nullable=False),
    comment="ended tasks until their retention is over",
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
_index("ix_taskmq_history_delete", history.c.delete_at)
_index("ix_taskmq_history_dead", history.c.queue_id, history.c.id, where="state=5")

keys = Table(
    "taskmq_keys",
    metadata,
    Column("queue_id", Integer, primary_key=True, autoincrement=False),
    Column("idem_key", _bytes(512), primary_key=True),
    Column("task_id", _bytes(32), nullable=False),
    Column("digest", _bytes(32), nullable=False, comment="hash of the content"),
    _big("expires_at", "end of its own life; NULL: lives with the task's record"),
    comment="idempotency keys",
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
_index("ix_taskmq_keys_expiry", keys.c.expires_at, where="expires_at IS NOT NULL")

locks = Table(
    "taskmq_locks",
    metadata,
    Column("name", _bytes(128), primary_key=True),
    Column("owner", _bytes(128), nullable=False),
    Column("expires_at", _Big, nullable=False),
    comment="named leases",
    sqlite_strict=True,
)

workers = Table(
    "taskmq_workers",
    metadata,
    Column("namespace", _bytes(64), primary_key=True),
    Column("id", _bytes(128), primary_key=True),
    Column("info", Text, nullable=False, comment="JSON"),
    Column("expires_at", _Big, nullable=False),
    comment="live workers",
    sqlite_strict=True,
)

version = Table(
    "taskmq_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    comment="which schema this database has",
    sqlite_strict=True,
)
