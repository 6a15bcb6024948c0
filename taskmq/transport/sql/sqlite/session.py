"""SQLite's wording of the named statements.

Two things shape it. SQLite gives up Python's interpreter lock around every step of a statement, and each row is a
step: a fetch thread that competes with busy handler threads would queue for that lock once a row. So rows travel as
one JSON value: written through ``json_each``, read through ``json_group_array``; a statement is one or two steps
whatever the number of rows. (Doubles are the exception – JSON text keeps 15 digits – so queue rows, which carry
``served``, are read and written as they are.)

And there is one writer at a time, so ``lock_queues`` needs no lock of its own: the transaction is the lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, ClassVar

import msgspec
from msgspec.structs import astuple

from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.sql.codes import BATCH, COUNT_QUEUED, COUNT_RUNNING, DUE, READY, RUNNING, SUCCEEDED
from taskmq.transport.sql.fragments import BLOCK, EXPIRY, LEASE, NEVER, TASK, counted, first
from taskmq.transport.sql.rare import Rare
from taskmq.transport.sql.rows import (
    RARELY_SET,
    ClaimedTask,
    CountRow,
    DueTask,
    Ending,
    Entry,
    FlowRow,
    KeyRow,
    NewTask,
    ParkedRow,
    QueueRow,
    Renewal,
    Success,
    TaskRow,
    TaskUpdate,
    flow_values,
)
from taskmq.transport.sql.sqlite.words import NEXT_DUE, WORDS, as_json_list
from taskmq.transport.sql.ways import Promise, Short, Unlocked
from taskmq.transport.sql.words import Words

_rows = msgspec.json.Decoder(list[list[Any]]).decode
_flow_rows = msgspec.json.Decoder(list[FlowRow]).decode
_task_rows = msgspec.json.Decoder(list[TaskRow]).decode
_claimed_rows = msgspec.json.Decoder(list[ClaimedTask]).decode


def _columns(*names: str, prefix: str = "") -> str:
    return ", ".join(prefix + name for name in names)


def _fields(count: int, first: int = 0) -> str:
    """The elements of a JSON row, one by one."""
    return ", ".join(f"json_extract(j.value, '$[{i}]')" for i in range(first, first + count))


def _as_json(columns: str, source: str) -> str:
    """A query whose rows come as one JSON value."""
    return f"SELECT json_group_array(json_array({columns})) FROM ({source})"


_FLOW = (
    "flow_id, code, weight, tag, h1, h2, hseq, hhandler, elig, n_run, n_wait, blocked_until, blocked_seq, held_by, "
    "paused, max_running, p1, p2, pseq"
)
_TASK = ", ".join(
    f"coalesce(t.{name}, 0) AS {name}" if name in ("lane", "due_at") else f"t.{name}"
    for name in TaskRow.__struct_fields__
)
_TASK_NAMES = _columns(*TaskRow.__struct_fields__)
_CLAIMED_T = _columns(*ClaimedTask.__struct_fields__, prefix="t.")

LOCK_QUEUES = f"""
SELECT queue_id, name, aging_us, weight, served, v, j, utag, ulive, flows, paused, max_running,
  CASE WHEN max_running IS NULL THEN 0 ELSE {counted(COUNT_RUNNING)} END, max_queued,
  CASE WHEN max_queued IS NULL THEN 0 ELSE {counted(*COUNT_QUEUED)} END, rate, level, level_at, limited,
  (SELECT json_group_array(json_array(handler_id, h.name, version, keyed)) FROM taskmq_handlers h
    WHERE h.queue_id=q.queue_id),
  hold, lease_us,
  {first(TASK)}, {first(BLOCK)}, {first(LEASE)}, {first(EXPIRY)},
  open_at
FROM taskmq_queues q WHERE namespace=:namespace AND name IN (SELECT value FROM json_each(:names)) ORDER BY queue_id
"""
NEW_QUEUES = """
INSERT INTO taskmq_queues(namespace, name) SELECT ?, value FROM json_each(?) WHERE true ON CONFLICT DO NOTHING
"""
WRITE_QUEUE = """
UPDATE taskmq_queues SET served=?, v=?, j=?, utag=?, ulive=?, flows=?, level=?, level_at=?, open_at=?, limited=?
WHERE queue_id=?
"""
ADD_HANDLER = "INSERT INTO taskmq_handlers(queue_id, name, version, keyed) VALUES (?, ?, ?, ?) RETURNING handler_id"

FLOWS_BY_CODE = _as_json(
    _FLOW, f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND code IN (SELECT value FROM json_each(?))"
)
FLOWS_BY_ID = _as_json(_FLOW, f"SELECT {_FLOW} FROM taskmq_flows WHERE flow_id IN (SELECT value FROM json_each(?))")
FLOWS_IN_TURN = _as_json(
    _FLOW,
    f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND elig=1 ORDER BY h1, k2, k3, code LIMIT ? OFFSET ?",
)
FLOWS_OF_HANDLER = _as_json(
    _FLOW,
    f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND hhandler=? AND elig=1 "
    "ORDER BY h1, k2, k3, code LIMIT ? OFFSET ?",
)
FLOWS_DUE = _as_json(
    _FLOW,
    f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND blocked_until IS NOT NULL AND blocked_until<=? "
    "ORDER BY blocked_until, blocked_seq LIMIT ?",
)
_FLOW_WRITTEN = (
    "h1, h2, hseq, hhandler, k2, k3, tag, weight, elig, n_run, n_wait, blocked_until, blocked_seq, held_by, paused, "
    "max_running, p1, p2, pseq"
)
INSERT_FLOWS = f"""
INSERT INTO taskmq_flows(flow_id, queue_id, code, {_FLOW_WRITTEN}) SELECT {_fields(22)} FROM json_each(?) j
"""
UPDATE_FLOWS = f"""
UPDATE taskmq_flows SET ({_FLOW_WRITTEN}) = (SELECT {_fields(19, 3)})
FROM json_each(?) j WHERE flow_id=json_extract(j.value, '$[0]')
"""
DELETE_FLOWS = "DELETE FROM taskmq_flows WHERE flow_id IN (SELECT value FROM json_each(?))"

_LINE = "s1, s2, seq, handler_id"
LINE = _as_json(
    _LINE,
    f"SELECT {_LINE} FROM taskmq_tasks WHERE lane=? AND state={READY} ORDER BY s1, s2, seq LIMIT ? OFFSET ?",
)
_HEADS_OF_LANE = _as_json(
    _LINE,
    f"SELECT {_LINE} FROM taskmq_tasks WHERE lane=f.value AND state={READY} ORDER BY s1, s2, seq LIMIT :k OFFSET :skip",
)
HEADS = f"SELECT json_group_array(json_array(f.value, json(({_HEADS_OF_LANE})))) FROM json_each(:lanes) f"

NEXT_SEQ = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name='taskmq_tasks'), 0) + 1"
SPARE_FLOW_ID = "SELECT max(coalesce((SELECT max(flow_id) FROM taskmq_flows), 0), 1<<61) + 1"
ROWS = 20
"""Rows of one INSERT: 2.6 times as fast as ``executemany``, whose cost is the binding, step and reset of each row."""


def _insert_tasks(columns: Sequence[str], rows: int) -> str:
    values = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO taskmq_tasks({_columns(*columns)}) VALUES {', '.join([values] * rows)}"


_COLUMNS = NewTask.__struct_fields__
_DEFAULTS = NewTask.__struct_defaults__[RARELY_SET - len(_COLUMNS) :]
_USUAL = (_insert_tasks(_COLUMNS[:RARELY_SET], ROWS), _insert_tasks(_COLUMNS[:RARELY_SET], 1))
_FULL = (_insert_tasks(_COLUMNS, ROWS), _insert_tasks(_COLUMNS, 1))
KNOWN_IDS = """
SELECT id FROM taskmq_tasks WHERE id IN (SELECT value FROM json_each(?1))
UNION SELECT id FROM taskmq_history WHERE id IN (SELECT value FROM json_each(?1))
"""
_DUE = _columns(*DueTask._fields)
DUE_TASKS = _as_json(
    _DUE,
    f"SELECT {_DUE} FROM taskmq_tasks WHERE queue_id=? AND state={DUE} AND due_at<=? ORDER BY due_at, seq LIMIT ?",
)
MAKE_READY = """
UPDATE taskmq_tasks SET state=json_extract(j.value, '$[2]'), due_at=NULL, lane=json_extract(j.value, '$[1]')
FROM json_each(?) j WHERE seq=json_extract(j.value, '$[0]')
"""
CLAIM = f"""
UPDATE taskmq_tasks SET state={RUNNING}, due_at=:until, epoch=epoch+1, worker=:worker, batch=:batch, position=j.key,
  started=0, run_lane=NULL, progress=NULL
FROM json_each(:seqs) j WHERE seq=j.value
"""
MARK_RUNS = """
UPDATE taskmq_tasks SET run_lane=lane WHERE seq IN (SELECT value FROM json_each(?))
"""
CLAIMED_ROWS = (
    f"SELECT json_group_array(json_array({_CLAIMED_T})) FROM json_each(?) j CROSS JOIN taskmq_tasks t ON t.seq=j.value"
)
BY_SEQ = _as_json(
    _TASK_NAMES,
    f"SELECT {_TASK} FROM json_each(?) j CROSS JOIN taskmq_tasks t ON t.seq=j.value "
    "WHERE t.queue_id IN (SELECT queue_id FROM taskmq_queues WHERE namespace=?)",
)
RUN_MATES = _as_json(
    _TASK_NAMES,
    f"SELECT {_TASK} FROM taskmq_tasks t WHERE run_lane IS NOT NULL AND run_lane IN (SELECT value FROM json_each(?)) "
    "ORDER BY run_lane, s1, s2, seq",
)
ENDED_LEASES = _as_json(
    _TASK_NAMES,
    f"SELECT {_TASK} FROM taskmq_tasks t WHERE queue_id=:queue AND state={RUNNING} AND due_at<=coalesce("
    f"(SELECT due_at FROM taskmq_tasks WHERE queue_id=:queue AND state={RUNNING} AND due_at<=:now "
    "ORDER BY due_at LIMIT 1 OFFSET :last), :now) ORDER BY due_at, seq",
)
FIRST_IN_HANDS = f"""
SELECT seq, min(position) FROM taskmq_tasks
WHERE queue_id=? AND state={RUNNING} AND batch IN (SELECT value FROM json_each(?)) GROUP BY batch, run_lane
"""
EXPIRED = _as_json(
    _TASK_NAMES,
    f"SELECT {_TASK} FROM taskmq_tasks t WHERE queue_id=? AND expires_at IS NOT NULL AND state<>{RUNNING} "
    "AND expires_at<=? ORDER BY expires_at, seq LIMIT ?",
)
ATTEMPT_LOGS = """
SELECT json_group_array(json_array(t.seq, t.attempt_log))
FROM json_each(?) j CROSS JOIN taskmq_tasks t ON t.seq=j.value
"""
UPDATE_TASK = f"""
UPDATE taskmq_tasks SET {", ".join(f"{name}=?" for name in TaskUpdate.__struct_fields__[:-2])},
  attempt_log=coalesce(?, attempt_log), worker=NULL, started_at=NULL, batch=NULL, position=NULL, run_lane=NULL,
  started=0 WHERE seq=?
"""
RENEW = """
UPDATE taskmq_tasks SET due_at=json_extract(j.value, '$[1]'),
  started_at=CASE WHEN started=0 AND json_extract(j.value, '$[2]') THEN :now ELSE started_at END,
  started=max(started, json_extract(j.value, '$[2]')), progress=coalesce(json_extract(j.value, '$[3]'), progress)
FROM json_each(:rows) j WHERE seq=json_extract(j.value, '$[0]')
"""
_KEPT = (
    *("id", "queue_id", "seq", "priority", "aging_us", "available_at", "code", "pweight", "epoch", "max_attempts"),
    *("replays", "created_at", "retention", "handler", "handler_id", "version", "limit_key", "limit_n", "pmax"),
    *("progress", "idem_key", "key_mode", "digest", "tags", "body", "worker"),
)
_INTO_HISTORY = f"""
INSERT INTO taskmq_history({_columns(*_KEPT)}, finished_at, state, attempts, attempt_log, delete_at,
  reason, error, traceback, started_at, result)
SELECT {_columns(*_KEPT, prefix="t.")}, :now"""
FINISH = f"""{_INTO_HISTORY}, json_extract(j.value, '$[1]'), json_extract(j.value, '$[2]'),
  coalesce(json_extract(j.value, '$[3]'), t.attempt_log), {_fields(4, 4)},
  coalesce(json_extract(j.value, '$[8]'), t.started_at), NULL
FROM json_each(:rows) j CROSS JOIN taskmq_tasks t ON t.seq=json_extract(j.value, '$[0]')
WHERE json_extract(j.value, '$[4]') IS NOT NULL
"""
_SUCCEEDED = f"""{_INTO_HISTORY}, {SUCCEEDED}, t.attempts+1, t.attempt_log, :now+coalesce(t.retention, :keep),
  NULL, NULL, NULL, coalesce(json_extract(j.value, '$[1]'), t.started_at), """
SUCCEED = f"""{_SUCCEEDED}json_extract(j.value, '$[2]')
FROM json_each(:rows) j CROSS JOIN taskmq_tasks t ON t.seq=json_extract(j.value, '$[0]')
WHERE coalesce(t.retention, 1)>0
"""
DELETE_TASKS = "DELETE FROM taskmq_tasks WHERE seq IN (SELECT value FROM json_each(?))"

LIMITS_OF = _as_json(
    "seq, limit_key, limit_n",
    "SELECT seq, limit_key, limit_n FROM taskmq_tasks WHERE seq IN (SELECT value FROM json_each(?)) "
    "AND limit_key IS NOT NULL",
)
LIMITS_IN_LINE = _as_json(
    "handler_id, limit_key, limit_n",
    f"SELECT * FROM (SELECT * FROM taskmq_tasks WHERE lane=? AND state={READY} ORDER BY s1, s2, seq LIMIT ?) "
    "WHERE limit_key IS NOT NULL ORDER BY s1, s2, seq",
)
LIMITS_RUNNING = """
SELECT json_group_array(json_array(limit_key, running)) FROM taskmq_limits
WHERE namespace=? AND limit_key IN (SELECT value FROM json_each(?))
"""
LIMITS_PARKED = """
SELECT json_group_array(json_array(limit_key, handler_id, n, parked, owed, v, j)) FROM taskmq_parked
WHERE namespace=? AND limit_key IN (SELECT value FROM json_each(?))
"""
WRITE_TURNS = """
UPDATE taskmq_tasks SET rtag=json_extract(j.value, '$[1]') FROM json_each(?) j WHERE seq=json_extract(j.value, '$[0]')
"""
MOVE = "UPDATE taskmq_tasks SET state=? WHERE seq IN (SELECT value FROM json_each(?))"

FIND_KEYS = """
SELECT json_group_array(json_array(k.queue_id, k.idem_key, k.task_id, k.digest, k.expires_at))
FROM json_each(?) j CROSS JOIN taskmq_keys k
  ON k.queue_id=json_extract(j.value, '$[0]') AND k.idem_key=json_extract(j.value, '$[1]')
"""
WRITE_KEYS = f"INSERT OR REPLACE INTO taskmq_keys SELECT {_fields(5)} FROM json_each(?) j"


ADD_COUNT = """
INSERT INTO taskmq_counts(handler_id, kind, priority, n) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n=n+excluded.n
"""


class SqliteSession(Rare):
    """One transaction on one connection."""

    words: ClassVar[Words] = WORDS
    batch = BATCH
    shared = False
    unlocked: Unlocked | None = None
    short: Short | None = None

    def __init__(self, connection: sqlite3.Connection, namespace: str) -> None:
        self.namespace = namespace
        if connection.row_factory is None:
            self._run: Callable[..., sqlite3.Cursor] = connection.execute
        else:  # somebody else's, with ideas of its own about rows

            def run(statement: str, parameters: Any = ()) -> sqlite3.Cursor:
                cursor = connection.cursor()
                cursor.row_factory = None
                return cursor.execute(statement, parameters)

            self._run = run
        self._run_many = connection.executemany

    def _ask(self, statement: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        return self._run(WORDS.text(statement), WORDS.values(parameters)).fetchall()

    def _tell(self, statement: str, /, **parameters: Any) -> None:
        self._run(WORDS.text(statement), WORDS.values(parameters))

    def _count(self, statement: str, /, **parameters: Any) -> int:
        return self._run(WORDS.text(statement), WORDS.values(parameters)).rowcount

    def _read(self, statement: str, parameters: Any) -> list[list[Any]]:
        return _rows(self._run(statement, parameters).fetchone()[0])

    def _flows(self, statement: str, *parameters: Any) -> list[FlowRow]:
        return _flow_rows(self._run(statement, parameters).fetchone()[0])

    def _tasks(self, statement: str, parameters: Any) -> list[TaskRow]:
        return _task_rows(self._run(statement, parameters).fetchone()[0])

    # ── queues ──

    def lock_queues(self, names: Sequence[str], look: int = 0, seqs: Sequence[int] = ()) -> list[QueueRow]:
        """The rows of these queues, created where they are new."""
        wanted = dict.fromkeys(names)
        parameters = {"namespace": self.namespace, "names": as_json_list(wanted)}
        rows = self._run(LOCK_QUEUES, parameters).fetchall()
        if len(rows) < len(wanted):
            self._run(NEW_QUEUES, (self.namespace, parameters["names"]))
            rows = self._run(LOCK_QUEUES, parameters).fetchall()
        return [QueueRow(*row) for row in rows]

    def lock_later(self, names: Sequence[str]) -> None:
        """The transaction is the lock."""

    def write_queues(self, rows: Sequence[QueueRow]) -> None:
        """Store what changes with every claim."""
        for row in rows:
            turns = (row.served, row.v, row.j, row.utag, row.ulive, row.flows)
            self._run(WRITE_QUEUE, (*turns, row.level, row.level_at, row.open_at, row.limited, row.queue_id))

    def add_handler(self, queue_id: int, name: str, version: str, keyed: bool) -> int:
        """A new handler."""
        return int(self._run(ADD_HANDLER, (queue_id, name, version, keyed)).fetchone()[0])

    def add_counts(self, rows: Sequence[CountRow]) -> None:
        """How many tasks more."""
        for row in rows:  # few: a statement each costs less than their way through JSON
            self._run(ADD_COUNT, row)

    add_deltas = add_counts

    def fold_deltas(self, limit: int) -> None:
        """There are none."""

    # ── flows ──

    def flows_by_code(self, queue_id: int, codes: Sequence[str]) -> list[FlowRow]:
        """Flows by their codes."""
        return self._flows(FLOWS_BY_CODE, queue_id, as_json_list(codes)) if codes else []

    def flows_by_id(self, flow_ids: Sequence[int]) -> list[FlowRow]:
        """Flows by their ids."""
        return self._flows(FLOWS_BY_ID, as_json_list(flow_ids)) if flow_ids else []

    def flows_in_turn(self, queue_id: int, offset: int, limit: int, handler: int | None = None) -> list[FlowRow]:
        """Eligible flows in the order of their turns."""
        if handler is not None:
            return self._flows(FLOWS_OF_HANDLER, queue_id, handler, limit, offset)
        return self._flows(FLOWS_IN_TURN, queue_id, limit, offset)

    def flows_due(self, queue_id: int, now: int, limit: int) -> list[FlowRow]:
        """Blocked flows whose time is over."""
        return self._flows(FLOWS_DUE, queue_id, now, limit)

    def write_flows(self, queue_id: int, aging: bool, flows: Sequence[FlowRow]) -> None:
        """Insert, update or delete."""
        new = [astuple(flow_values(flow, queue_id, aging)) for flow in flows if flow.new and not flow.gone]
        old = [astuple(flow_values(flow, queue_id, aging)) for flow in flows if not flow.new and not flow.gone]
        gone = [flow.flow_id for flow in flows if flow.gone and not flow.new]
        if gone:  # first: a partition may have been born again under the same code
            self._run(DELETE_FLOWS, (as_json_list(gone),))
        if old:
            self._run(UPDATE_FLOWS, (as_json_list(old),))
        if new:
            self._run(INSERT_FLOWS, (as_json_list(new),))

    # ── lines ──

    def line(self, lane: int, offset: int, limit: int) -> list[Key]:
        """Keys of a lane's waiting tasks."""
        return [tuple(row) for row in self._read(LINE, (lane, limit, offset))]

    def heads(self, lanes: Sequence[int], offset: int, limit: int) -> dict[int, list[Key]]:
        """The same for many lanes."""
        if not lanes:
            return {}
        rows = self._read(HEADS, {"lanes": as_json_list(lanes), "k": limit, "skip": offset})
        return {lane: [tuple(key) for key in keys] for lane, keys in rows}

    # ── tasks ──

    def next_seqs(self, count: int) -> Sequence[int]:
        """The seqs of the next tasks."""
        first = int(self._run(NEXT_SEQ).fetchone()[0])
        return range(first, first + count)

    def spare_flow_id(self) -> int:
        """An id beyond every seq."""
        return int(self._run(SPARE_FLOW_ID).fetchone()[0])

    def insert_tasks(self, rows: Sequence[NewTask]) -> None:
        """New tasks: many rows a statement, and only the columns that are not at their defaults."""
        usual, full = [], []
        for row in map(astuple, rows):
            if row[RARELY_SET:] == _DEFAULTS:
                usual.append(row[:RARELY_SET])
            else:
                full.append(row)
        for group, (many, one) in ((usual, _USUAL), (full, _FULL)):
            whole = len(group) - len(group) % ROWS
            for start in range(0, whole, ROWS):
                self._run(many, [*chain.from_iterable(group[start : start + ROWS])])
            self._run_many(one, group[whole:])

    def known_ids(self, ids: Sequence[str]) -> set[str]:
        """Which of these tasks exist."""
        return {row[0] for row in self._run(KNOWN_IDS, (as_json_list(ids),))}

    def due_tasks(self, queue_id: int, now: int, limit: int) -> list[DueTask]:
        """What is due."""
        return [DueTask(*row) for row in self._read(DUE_TASKS, (queue_id, now, limit))]

    def next_due(self, names: Sequence[str], now: int) -> Promise[int | None]:
        """When something of these queues falls due."""
        parameters = {"namespace": self.namespace, "names": as_json_list(names), "now": now}
        due: int = self._run(NEXT_DUE, parameters).fetchone()[0]
        return lambda: None if due == NEVER else due

    def make_ready(self, rows: Sequence[Entry]) -> None:
        """Due tasks enter their lanes."""
        if rows:
            self._run(MAKE_READY, (as_json_list(rows),))

    def claim(
        self, picks: Sequence[tuple[int, int | None]], worker: str, until: int, batch: int
    ) -> Promise[list[ClaimedTask]]:
        """Mark as running; the claimed rows."""
        seqs = as_json_list(seq for seq, _ in picks)
        self._run(CLAIM, {"until": until, "worker": worker, "batch": batch, "seqs": seqs})
        runs = [seq for seq, run in picks if run is not None]
        if runs:
            self._run(MARK_RUNS, (as_json_list(runs),))
        rows = _claimed_rows(self._run(CLAIMED_ROWS, (seqs,)).fetchone()[0])
        return lambda: rows

    def tasks_by_seq(self, seqs: Sequence[int], *, lock: bool = False) -> list[TaskRow]:
        """Tasks of this namespace by seq."""
        return self._tasks(BY_SEQ, (as_json_list(seqs), self.namespace)) if seqs else []

    def run_mates(self, lanes: Sequence[int]) -> list[TaskRow]:
        """The runs of these lanes."""
        return self._tasks(RUN_MATES, (as_json_list(lanes),)) if lanes else []

    def ended_leases(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Running tasks whose lease is over."""
        return self._tasks(ENDED_LEASES, {"queue": queue_id, "now": now, "last": limit - 1})

    def first_in_hands(self, queue_id: int, batches: Sequence[int]) -> list[int]:
        """The first running task of each batch and of each run."""
        return [row[0] for row in self._run(FIRST_IN_HANDS, (queue_id, as_json_list(batches)))]

    def expired(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Waiting tasks that are too late."""
        return self._tasks(EXPIRED, (queue_id, now, limit))

    def attempt_logs(self, seqs: Sequence[int]) -> dict[int, str | None]:
        """Histories of failed attempts."""
        return {row[0]: row[1] for row in self._read(ATTEMPT_LOGS, (as_json_list(seqs),))} if seqs else {}

    def update_tasks(self, rows: Sequence[TaskUpdate]) -> None:
        """Out of a worker's hands."""
        if rows:
            self._run_many(UPDATE_TASK, map(astuple, rows))

    def renew(self, rows: Sequence[Renewal], now: int) -> None:
        """New lease ends."""
        if rows:
            values = as_json_list((row.seq, row.due_at, int(row.started), row.progress) for row in rows)
            self._run(RENEW, {"rows": values, "now": now})

    def succeed(self, rows: Sequence[Success], now: int, keep: int) -> None:
        """Into the history."""
        if rows:
            self._run(SUCCEED, {"now": now, "keep": keep, "rows": as_json_list(map(astuple, rows))})
            self._run(DELETE_TASKS, (as_json_list(row.seq for row in rows),))

    def finish(self, rows: Sequence[Ending], now: int) -> None:
        """Into the history."""
        if rows:
            self._run(FINISH, {"rows": as_json_list(map(astuple, rows)), "now": now})
            self._run(DELETE_TASKS, (as_json_list(row.seq for row in rows),))

    # ── concurrency limits ──

    def limits_of(self, seqs: Sequence[int]) -> dict[int, Limit]:
        """The limits of tasks."""
        return {seq: Limit(key, n) for seq, key, n in self._read(LIMITS_OF, (as_json_list(seqs),))} if seqs else {}

    def limits_in_line(self, lane: int, first: int) -> list[tuple[int, Limit]]:
        """The limits of the first tasks of a line."""
        return [(handler_id, Limit(key, n)) for handler_id, key, n in self._read(LIMITS_IN_LINE, (lane, first))]

    def load_limits(self, keys: Sequence[str]) -> tuple[dict[str, int], list[ParkedRow]]:
        """What runs and what is parked."""
        parameters = (self.namespace, as_json_list(keys))
        running = {row[0]: row[1] for row in self._read(LIMITS_RUNNING, parameters)}
        return running, [ParkedRow(*row) for row in self._read(LIMITS_PARKED, parameters)]

    def write_turns(self, rows: Sequence[tuple[int, int]]) -> None:
        """Tags of parked tasks."""
        if rows:
            self._run(WRITE_TURNS, (as_json_list(rows),))

    def move(self, seqs: Sequence[int], state: int) -> None:
        """Park, or put back."""
        if seqs:
            self._run(MOVE, (state, as_json_list(seqs)))

    # ── idempotency keys ──

    def find_keys(self, pairs: Sequence[tuple[int, str]]) -> list[KeyRow]:
        """Keys that are taken."""
        return [KeyRow(*row) for row in self._read(FIND_KEYS, (as_json_list(pairs),))]

    def write_keys(self, rows: Sequence[KeyRow]) -> None:
        """Take keys."""
        if rows:
            self._run(WRITE_KEYS, (as_json_list(rows),))
