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
from taskmq.transport.sql.codes import BATCH
from taskmq.transport.sql.fragments import NEVER
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
from taskmq.transport.sql.sqlite import hot
from taskmq.transport.sql.sqlite.words import NEXT_DUE, WORDS, as_json_list
from taskmq.transport.sql.ways import Promise, Short, Unlocked
from taskmq.transport.sql.words import Words

_rows = msgspec.json.Decoder(list[list[Any]]).decode
_flow_rows = msgspec.json.Decoder(list[FlowRow]).decode
_task_rows = msgspec.json.Decoder(list[TaskRow]).decode
_claimed_rows = msgspec.json.Decoder(list[ClaimedTask]).decode


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
        rows = self._run(hot.LOCK_QUEUES, parameters).fetchall()
        if len(rows) < len(wanted):
            self._run(hot.NEW_QUEUES, (self.namespace, parameters["names"]))
            rows = self._run(hot.LOCK_QUEUES, parameters).fetchall()
        return [QueueRow(*row) for row in rows]

    def lock_later(self, names: Sequence[str]) -> None:
        """The transaction is the lock."""

    def write_queues(self, rows: Sequence[QueueRow]) -> None:
        """Store what changes with every claim."""
        for row in rows:
            turns = (row.served, row.v, row.j, row.utag, row.ulive, row.flows)
            self._run(hot.WRITE_QUEUE, (*turns, row.level, row.level_at, row.open_at, row.limited, row.queue_id))

    def add_handler(self, queue_id: int, name: str, version: str, keyed: bool) -> int:
        """A new handler."""
        return int(self._run(hot.ADD_HANDLER, (queue_id, name, version, keyed)).fetchone()[0])

    def add_counts(self, rows: Sequence[CountRow]) -> None:
        """How many tasks more."""
        for row in rows:  # few: a statement each costs less than their way through JSON
            self._run(hot.ADD_COUNT, row)

    add_deltas = add_counts

    def fold_deltas(self, limit: int) -> None:
        """There are none."""

    # ── flows ──

    def flows_by_code(self, queue_id: int, codes: Sequence[str]) -> list[FlowRow]:
        """Flows by their codes."""
        return self._flows(hot.FLOWS_BY_CODE, queue_id, as_json_list(codes)) if codes else []

    def flows_by_id(self, flow_ids: Sequence[int]) -> list[FlowRow]:
        """Flows by their ids."""
        return self._flows(hot.FLOWS_BY_ID, as_json_list(flow_ids)) if flow_ids else []

    def flows_in_turn(self, queue_id: int, offset: int, limit: int, handler: int | None = None) -> list[FlowRow]:
        """Eligible flows in the order of their turns."""
        if handler is not None:
            return self._flows(hot.FLOWS_OF_HANDLER, queue_id, handler, limit, offset)
        return self._flows(hot.FLOWS_IN_TURN, queue_id, limit, offset)

    def flows_due(self, queue_id: int, now: int, limit: int) -> list[FlowRow]:
        """Blocked flows whose time is over."""
        return self._flows(hot.FLOWS_DUE, queue_id, now, limit)

    def write_flows(self, queue_id: int, aging: bool, flows: Sequence[FlowRow]) -> None:
        """Insert, update or delete."""
        new = [astuple(flow_values(flow, queue_id, aging)) for flow in flows if flow.new and not flow.gone]
        old = [astuple(flow_values(flow, queue_id, aging)) for flow in flows if not flow.new and not flow.gone]
        gone = [flow.flow_id for flow in flows if flow.gone and not flow.new]
        if gone:  # first: a partition may have been born again under the same code
            self._run(hot.DELETE_FLOWS, (as_json_list(gone),))
        if old:
            self._run(hot.UPDATE_FLOWS, (as_json_list(old),))
        if new:
            self._run(hot.INSERT_FLOWS, (as_json_list(new),))

    # ── lines ──

    def line(self, lane: int, offset: int, limit: int) -> list[Key]:
        """Keys of a lane's waiting tasks."""
        return [tuple(row) for row in self._read(hot.LINE, (lane, limit, offset))]

    def heads(self, lanes: Sequence[int], offset: int, limit: int) -> dict[int, list[Key]]:
        """The same for many lanes."""
        if not lanes:
            return {}
        rows = self._read(hot.HEADS, {"lanes": as_json_list(lanes), "k": limit, "skip": offset})
        return {lane: [tuple(key) for key in keys] for lane, keys in rows}

    # ── tasks ──

    def next_seqs(self, count: int) -> Sequence[int]:
        """The seqs of the next tasks."""
        first = int(self._run(hot.NEXT_SEQ).fetchone()[0])
        return range(first, first + count)

    def spare_flow_id(self) -> int:
        """An id beyond every seq."""
        return int(self._run(hot.SPARE_FLOW_ID).fetchone()[0])

    def insert_tasks(self, rows: Sequence[NewTask]) -> None:
        """New tasks: many rows a statement, and only the columns that are not at their defaults."""
        usual, full = [], []
        for row in map(astuple, rows):
            if row[RARELY_SET:] == hot.DEFAULTS:
                usual.append(row[:RARELY_SET])
            else:
                full.append(row)
        for group, (many, one) in ((usual, hot.USUAL), (full, hot.FULL)):
            whole = len(group) - len(group) % hot.ROWS
            for start in range(0, whole, hot.ROWS):
                self._run(many, [*chain.from_iterable(group[start : start + hot.ROWS])])
            self._run_many(one, group[whole:])

    def known_ids(self, ids: Sequence[str]) -> set[str]:
        """Which of these tasks exist."""
        return {row[0] for row in self._run(hot.KNOWN_IDS, (as_json_list(ids),))}

    def due_tasks(self, queue_id: int, now: int, limit: int) -> list[DueTask]:
        """What is due."""
        return [DueTask(*row) for row in self._read(hot.DUE_TASKS, (queue_id, now, limit))]

    def next_due(self, names: Sequence[str], now: int) -> Promise[int | None]:
        """When something of these queues falls due."""
        parameters = {"namespace": self.namespace, "names": as_json_list(names), "now": now}
        due: int = self._run(NEXT_DUE, parameters).fetchone()[0]
        return lambda: None if due == NEVER else due

    def make_ready(self, rows: Sequence[Entry]) -> None:
        """Due tasks enter their lanes."""
        if rows:
            self._run(hot.MAKE_READY, (as_json_list(rows),))

    def claim(
        self, picks: Sequence[tuple[int, int | None]], worker: str, until: int, batch: int
    ) -> Promise[list[ClaimedTask]]:
        """Mark as running; the claimed rows."""
        seqs = as_json_list(seq for seq, _ in picks)
        self._run(hot.CLAIM, {"until": until, "worker": worker, "batch": batch, "seqs": seqs})
        runs = [seq for seq, run in picks if run is not None]
        if runs:
            self._run(hot.MARK_RUNS, (as_json_list(runs),))
        rows = _claimed_rows(self._run(hot.CLAIMED_ROWS, (seqs,)).fetchone()[0])
        return lambda: rows

    def tasks_by_seq(self, seqs: Sequence[int], *, lock: bool = False) -> list[TaskRow]:
        """Tasks of this namespace by seq."""
        return self._tasks(hot.BY_SEQ, (as_json_list(seqs), self.namespace)) if seqs else []

    def run_mates(self, lanes: Sequence[int]) -> list[TaskRow]:
        """The runs of these lanes."""
        return self._tasks(hot.RUN_MATES, (as_json_list(lanes),)) if lanes else []

    def ended_leases(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Running tasks whose lease is over."""
        return self._tasks(hot.ENDED_LEASES, {"queue": queue_id, "now": now, "last": limit - 1})

    def first_in_hands(self, queue_id: int, batches: Sequence[int]) -> list[int]:
        """The first running task of each batch and of each run."""
        return [row[0] for row in self._run(hot.FIRST_IN_HANDS, (queue_id, as_json_list(batches)))]

    def expired(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        """Waiting tasks that are too late."""
        return self._tasks(hot.EXPIRED, (queue_id, now, limit))

    def attempt_logs(self, seqs: Sequence[int]) -> dict[int, str | None]:
        """Histories of failed attempts."""
        return {row[0]: row[1] for row in self._read(hot.ATTEMPT_LOGS, (as_json_list(seqs),))} if seqs else {}

    def update_tasks(self, rows: Sequence[TaskUpdate]) -> None:
        """Out of a worker's hands."""
        if rows:
            self._run_many(hot.UPDATE_TASK, map(astuple, rows))

    def renew(self, rows: Sequence[Renewal], now: int) -> None:
        """New lease ends."""
        if rows:
            values = as_json_list((row.seq, row.due_at, int(row.started), row.progress) for row in rows)
            self._run(hot.RENEW, {"rows": values, "now": now})

    def succeed(self, rows: Sequence[Success], now: int, keep: int) -> None:
        """Into the history."""
        if rows:
            self._run(hot.SUCCEED, {"now": now, "keep": keep, "rows": as_json_list(map(astuple, rows))})
            self._run(hot.DELETE_TASKS, (as_json_list(row.seq for row in rows),))

    def finish(self, rows: Sequence[Ending], now: int) -> None:
        """Into the history."""
        if rows:
            self._run(hot.FINISH, {"rows": as_json_list(map(astuple, rows)), "now": now})
            self._run(hot.DELETE_TASKS, (as_json_list(row.seq for row in rows),))

    # ── concurrency limits ──

    def limits_of(self, seqs: Sequence[int]) -> dict[int, Limit]:
        """The limits of tasks."""
        return {seq: Limit(key, n) for seq, key, n in self._read(hot.LIMITS_OF, (as_json_list(seqs),))} if seqs else {}

    def limits_in_line(self, lane: int, first: int) -> list[tuple[int, Limit]]:
        """The limits of the first tasks of a line."""
        return [(handler_id, Limit(key, n)) for handler_id, key, n in self._read(hot.LIMITS_IN_LINE, (lane, first))]

    def load_limits(self, keys: Sequence[str]) -> tuple[dict[str, int], list[ParkedRow]]:
        """What runs and what is parked."""
        parameters = (self.namespace, as_json_list(keys))
        running = {row[0]: row[1] for row in self._read(hot.LIMITS_RUNNING, parameters)}
        return running, [ParkedRow(*row) for row in self._read(hot.LIMITS_PARKED, parameters)]

    def write_turns(self, rows: Sequence[tuple[int, int]]) -> None:
        """Tags of parked tasks."""
        if rows:
            self._run(hot.WRITE_TURNS, (as_json_list(rows),))

    def move(self, seqs: Sequence[int], state: int) -> None:
        """Park, or put back."""
        if seqs:
            self._run(hot.MOVE, (state, as_json_list(seqs)))

    # ── idempotency keys ──

    def find_keys(self, pairs: Sequence[tuple[int, str]]) -> list[KeyRow]:
        """Keys that are taken."""
        return [KeyRow(*row) for row in self._read(hot.FIND_KEYS, (as_json_list(pairs),))]

    def write_keys(self, rows: Sequence[KeyRow]) -> None:
        """Take keys."""
        if rows:
            self._run(hot.WRITE_KEYS, (as_json_list(rows),))
