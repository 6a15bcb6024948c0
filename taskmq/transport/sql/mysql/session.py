"""One transaction on MySQL or MariaDB. Locks, snapshots and exchanges are as on PostgreSQL (its session.py).

What differs by necessity: there are no advisory locks that end with a transaction, so each queue has a row in
``taskmq_guards`` – publishes without the queue's lock share it, ``delete_queue`` takes it – and the row without a name
is the lock of all limits. There are no sequences in MySQL, so numbers come from the AUTO_INCREMENT of a table that is
always empty. Several statements are sent in one packet, which is what saves exchanges here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec.structs import astuple

from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.sql.codes import SHARED_BATCH
from taskmq.transport.sql.fragments import NEVER
from taskmq.transport.sql.mysql import hot
from taskmq.transport.sql.mysql.drivers import MysqlCursor, Parameters
from taskmq.transport.sql.mysql.packet import Sent
from taskmq.transport.sql.mysql.words import NEXT_DUE, WORDS, listed, numbers, records
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
from taskmq.transport.sql.ways import Promise, Short, Unlocked
from taskmq.transport.sql.words import Words

SLOTS = 16
LONG_SLOTS = range(SLOTS, 1 << 15)
LIMITS = ""
"""The guard of all limits: a name that no queue has."""


class MysqlSession(Rare):
    """One transaction on one cursor. ``begin``: the statements that open it."""

    words: ClassVar[Words] = WORDS
    delete_keys: ClassVar[str] = hot.DELETE_KEYS
    write_worker_text: ClassVar[str] = hot.WRITE_WORKER
    also_of_queue: ClassVar[tuple[str, ...]] = ()
    also_of_namespace: ClassVar[tuple[str, ...]] = (
        "DELETE FROM taskmq_guards WHERE namespace=:namespace AND name<>''",
    )
    batch = SHARED_BATCH
    shared = True

    def __init__(self, cursor: MysqlCursor, namespace: str, begin: Sequence[str]) -> None:
        self.namespace = namespace
        self.committing = False
        """Whether COMMIT may have reached the server."""
        self.unlocked: Unlocked | None = self
        self.short: Short | None = None
        self.slots = range(SLOTS)
        self._cursor = cursor
        self._pending = [Sent(statement) for statement in begin]
        self._foreseen: tuple[list[int], Sent] | None = None
        """Tasks that were asked for in the packet of the lock."""
        self._limits_locked = False

    # ── exchanges ──

    def _text(self, statement: str, parameters: Parameters) -> str:
        return self._cursor.mogrify(statement, parameters) if parameters else statement

    def _later(self, statement: str, parameters: Parameters = ()) -> Sent:
        """Send it with the next question; its answer is there after that."""
        sent = Sent(self._text(statement, parameters))
        self._pending.append(sent)
        return sent

    def _now(self, statement: str, parameters: Parameters = ()) -> Sent:
        """Send it, after all that was kept back."""
        sent = self._later(statement, parameters)
        self.send()
        return sent

    def _rows(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """The rows of a question, after all that was kept back."""
        return self._now(statement, parameters).rows

    def send(self) -> None:
        """Send what was kept back, in one packet, and leave the end of the transaction to others."""
        pending, self._pending = self._pending, []
        if pending:
            self._exchange(pending)

    def _exchange(self, pending: Sequence[Sent]) -> None:
        cursor = self._cursor
        cursor.execute(";".join([sent.text for sent in pending]))
        for sent in pending:
            sent.take(cursor)
            cursor.nextset()

    def commit(self) -> None:
        """Send what was kept back, and commit."""
        self._later("COMMIT")
        self.committing = True
        self.send()
        self.committing = False

    def _ask(self, statement: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        return self._rows(WORDS.text(statement), WORDS.values(parameters))

    def _tell(self, statement: str, /, **parameters: Any) -> None:
        self._later(WORDS.text(statement), WORDS.values(parameters))

    def _count(self, statement: str, /, **parameters: Any) -> int:
        return self._now(WORDS.text(statement), WORDS.values(parameters)).rowcount

    # ── queues ──

    def lock_queues(self, names: Sequence[str], look: int = 0, seqs: Sequence[int] = ()) -> list[QueueRow]:
        wanted = sorted(set(names))
        if not wanted:
            return []
        parameters = {"namespace": self.namespace, "names": wanted}
        rows = self._read_queues(parameters, seqs)
        if len(rows) < len(wanted):
            known = {row.name for row in rows}
            for name in wanted:
                if name not in known:
                    self._later(hot.NEW_GUARD, (self.namespace, name))
                    self._later(hot.NEW_QUEUE, (self.namespace, name))
            rows = self._read_queues(parameters, seqs)
        return rows

    def _read_queues(self, parameters: Mapping[str, Any], seqs: Sequence[int]) -> list[QueueRow]:
        self._later(hot.LOCK, parameters)
        tasks = self._later(hot.BY_SEQ.format(numbers(seqs)), (self.namespace,)) if seqs else None
        queues, handlers = self._later(hot.QUEUES, parameters), self._now(hot.HANDLERS, parameters)
        self._foreseen = None if tasks is None else (list(seqs), tasks)
        return _queue_rows(queues.rows, handlers.rows)

    def lock_later(self, names: Sequence[str]) -> None:
        self._later(hot.LOCK, {"namespace": self.namespace, "names": list(names)})

    def write_queues(self, rows: Sequence[QueueRow]) -> None:
        for row in rows:
            turns = (row.served, row.v, row.j, row.utag, row.ulive, row.flows)
            self._later(hot.WRITE_QUEUE, (*turns, row.level, row.level_at, row.open_at, row.limited, row.queue_id))

    def add_handler(self, queue_id: int, name: str, version: str, keyed: bool) -> int:
        return self._now(hot.ADD_HANDLER, (queue_id, name, version, int(keyed))).first_id

    def add_counts(self, rows: Sequence[CountRow]) -> None:
        if rows:
            self._later(hot.ADD_COUNTS.format(", ".join(str(tuple(row)) for row in rows)))

    def pause(self, queue: str, paused: bool) -> None:
        self.lock_queues([queue])
        self._tell(hot.PAUSE, namespace=self.namespace, name=queue, paused=int(paused))

    # ── without the lock ──

    def look_at_queues(self, names: Sequence[str], ids: Sequence[str]) -> tuple[list[QueueRow], set[str]]:
        parameters = {"namespace": self.namespace, "names": sorted(set(names)), "ids": list(ids)}
        self._later(hot.GUARD_SHARED, (self.namespace, parameters["names"]))
        queues, handlers = self._later(hot.LOOK, parameters), self._later(hot.HANDLERS, parameters)
        known = self._rows(hot.KNOWN_IDS, parameters)
        return _queue_rows(queues.rows, handlers.rows), {row[0] for row in known}

    def append_tasks(self, rows: Sequence[NewTask]) -> None:
        for row, seq in zip(rows, self.next_seqs(len(rows)), strict=True):
            row.seq = seq
        self.insert_tasks(rows)

    def add_deltas(self, rows: Sequence[CountRow]) -> None:
        if rows:
            slot = random.choice(self.slots)
            self._later(hot.ADD_DELTAS.format(", ".join(str((*row, slot)) for row in rows)))

    def fold_deltas(self, limit: int) -> None:
        totals: dict[tuple[int, int, int], int] = {}
        for handler, kind, priority, slot, n in self._rows(hot.DELTAS, (limit,)):
            self._later(hot.DELETE_DELTA, (handler, kind, priority, slot))
            totals[handler, kind, priority] = totals.get((handler, kind, priority), 0) + n
        self.add_deltas([CountRow(*at, n) for at, n in sorted(totals.items())])

    def guard_names(self, names: Sequence[str]) -> None:
        self._later(hot.GUARD, (self.namespace, sorted(set(names)) or [None]))

    # ── flows ──

    def flows_by_code(self, queue_id: int, codes: Sequence[str]) -> list[FlowRow]:
        return self._flows(hot.FLOWS_BY_CODE, (queue_id, list(codes))) if codes else []

    def flows_by_id(self, flow_ids: Sequence[int]) -> list[FlowRow]:
        return self._flows(hot.FLOWS_BY_ID.format(numbers(flow_ids))) if flow_ids else []

    def flows_in_turn(self, queue_id: int, offset: int, limit: int, handler: int | None = None) -> list[FlowRow]:
        if handler is not None:
            return self._flows(hot.FLOWS_OF_HANDLER, (handler, limit, offset))
        return self._flows(hot.FLOWS_IN_TURN, (queue_id, limit, offset))

    def flows_due(self, queue_id: int, now: int, limit: int) -> list[FlowRow]:
        return self._flows(hot.FLOWS_DUE, (queue_id, now, limit))

    def _flows(self, statement: str, parameters: Parameters = ()) -> list[FlowRow]:
        return [FlowRow(*row) for row in self._rows(statement, parameters)]

    def write_flows(self, queue_id: int, aging: bool, flows: Sequence[FlowRow]) -> None:
        gone = [flow.flow_id for flow in flows if flow.gone and not flow.new]
        old = [astuple(flow_values(flow, queue_id, aging)) for flow in flows if not flow.new and not flow.gone]
        new = [astuple(flow_values(flow, queue_id, aging)) for flow in flows if flow.new and not flow.gone]
        if gone:  # first: a partition may have been born again under the same code
            self._later(hot.DELETE_FLOWS.format(listed(gone)))
        if old:
            self._join(hot.UPDATE_FLOWS, hot.FLOW_NAMES, old)
        if new:
            self._insert(hot.INSERT_FLOWS, new)

    def _join(self, statement: str, names: Sequence[str], rows: Sequence[Sequence[Any]], *before: Any) -> None:
        """A statement over the rows as a table; ``before``: its parameters in front of it."""
        table, values = records(names, rows)
        self._later(statement.format(table), [*before, *values])

    def _insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Rows as VALUES; what is no text is written here, for the driver takes its time with each value."""
        places, texts = [], []
        for row in rows:
            texts += [value for value in row if isinstance(value, str)]
            places.append(", ".join([_place(value) for value in row]))
        self._later(statement.format(f"({'), ('.join(places)})"), texts)

    # ── lines ──

    def line(self, lane: int, offset: int, limit: int) -> list[Key]:
        return [(row[0], row[1], row[2], row[3]) for row in self._rows(hot.LINE, (lane, limit, offset))]

    def heads(self, lanes: Sequence[int], offset: int, limit: int) -> dict[int, list[Key]]:
        heads: dict[int, list[Key]] = {}
        if not lanes:
            return heads
        statement = " UNION ALL ".join([hot.HEADS] * len(lanes))
        values = [value for lane in lanes for value in (lane, limit, offset)]
        for lane, *key in self._rows(statement, values):
            heads.setdefault(lane, []).append((key[0], key[1], key[2], key[3]))
        for keys in heads.values():
            keys.sort()
        return heads

    # ── tasks ──

    def next_seqs(self, count: int) -> Sequence[int]:
        if not count:
            return ()
        first = self._now(hot.NEW_SEQS.format(", ".join(["()"] * count))).first_id
        seqs = range(first, first + count)
        self._later(hot.OLD_SEQS.format(listed(seqs)))
        return seqs

    def spare_flow_id(self) -> int:
        return int(self._rows(hot.SPARE_FLOW_ID)[0][0])

    def insert_tasks(self, rows: Sequence[NewTask]) -> None:
        if rows:
            whole = [astuple(row) for row in rows]
            usual = [row[:RARELY_SET] for row in whole if row[RARELY_SET:] == hot.DEFAULTS]
            if usual:
                self._insert(hot.INSERT_USUAL, usual)
            if len(usual) < len(whole):
                self._insert(hot.INSERT_TASKS, [row for row in whole if row[RARELY_SET:] != hot.DEFAULTS])

    def known_ids(self, ids: Sequence[str]) -> set[str]:
        return {row[0] for row in self._rows(hot.KNOWN_IDS, {"ids": list(ids)})}

    def due_tasks(self, queue_id: int, now: int, limit: int) -> list[DueTask]:
        return [DueTask(*row) for row in self._rows(hot.DUE_TASKS, (queue_id, now, limit))]

    def next_due(self, names: Sequence[str], now: int) -> Promise[int | None]:
        due = self._later(NEXT_DUE, {"namespace": self.namespace, "names": list(names), "now": now})

        def answer() -> int | None:
            moment = int(due.rows[0][0])
            return None if moment == NEVER else moment

        return answer

    def make_ready(self, rows: Sequence[Entry]) -> None:
        if rows:
            self._join(hot.MAKE_READY, Entry._fields, rows)

    def claim(
        self, picks: Sequence[tuple[int, int | None]], worker: str, until: int, batch: int
    ) -> Promise[list[ClaimedTask]]:
        places = [(seq, place, int(run is not None)) for place, (seq, run) in enumerate(picks)]
        table, values = records(("seq", "position", "run"), places)
        self._later(hot.CLAIM.format(table), [*values, until, worker, batch])
        claimed = self._later(hot.CLAIMED.format(numbers(seq for seq, _ in picks)))
        return lambda: [ClaimedTask(*row) for row in claimed.rows]

    def tasks_by_seq(self, seqs: Sequence[int], *, lock: bool = False) -> list[TaskRow]:
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen[0] == seqs:
            return [TaskRow(*row) for row in foreseen[1].rows]
        return self._tasks(hot.BY_SEQ.format(numbers(seqs)), (self.namespace,)) if seqs else []

    def run_mates(self, lanes: Sequence[int]) -> list[TaskRow]:
        return self._tasks(hot.RUN_MATES.format(numbers(lanes))) if lanes else []

    def ended_leases(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        last = self._rows(hot.LAST_END, (queue_id, now, limit - 1))
        return self._tasks(hot.ENDED_LEASES, (queue_id, last[0][0] if last else now))

    def first_in_hands(self, queue_id: int, batches: Sequence[int]) -> list[int]:
        first: dict[tuple[int, int | None], tuple[int, int]] = {}
        for batch, run, position, seq in self._rows(hot.IN_HANDS.format(numbers(batches)), (queue_id,)):
            at = (batch, run)
            first[at] = min(first.get(at, (position, seq)), (position, seq))
        return [seq for _, seq in first.values()]

    def expired(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        return self._tasks(hot.EXPIRED, (queue_id, now, limit))

    def _tasks(self, statement: str, parameters: Parameters = ()) -> list[TaskRow]:
        return [TaskRow(*row) for row in self._rows(statement, parameters)]

    def attempt_logs(self, seqs: Sequence[int]) -> dict[int, str | None]:
        return {row[0]: row[1] for row in self._rows(hot.ATTEMPT_LOGS.format(numbers(seqs)))} if seqs else {}

    def update_tasks(self, rows: Sequence[TaskUpdate]) -> None:
        if rows:
            self._join(hot.UPDATE_TASKS, hot.UPDATE_NAMES, [astuple(row) for row in rows])

    def renew(self, rows: Sequence[Renewal], now: int) -> None:
        started = [row.seq for row in rows if row.started]
        if started:
            self._later(hot.RENEW[0].format(listed(started)), (now,))
            self._later(hot.RENEW[1].format(listed(started)))
        if rows:
            values = [(row.seq, row.due_at, row.progress) for row in rows]
            self._join(hot.RENEW[2], ("seq", "due_at", "progress"), values)

    def succeed(self, rows: Sequence[Success], now: int, keep: int) -> None:
        if rows:
            self._join(hot.SUCCEED, Success.__struct_fields__, [astuple(row) for row in rows], now, now, keep)
            self._later(hot.DELETE_TASKS.format(listed(row.seq for row in rows)))

    def finish(self, rows: Sequence[Ending], now: int) -> None:
        if rows:
            self._join(hot.FINISH, Ending.__struct_fields__, [astuple(row) for row in rows], now)
            self._later(hot.DELETE_TASKS.format(listed(row.seq for row in rows)))

    # ── concurrency limits ──

    def limits_of(self, seqs: Sequence[int]) -> dict[int, Limit]:
        rows = self._rows(hot.LIMITS_OF.format(numbers(seqs))) if seqs else ()
        return {seq: Limit(key, n) for seq, key, n in rows}

    def limits_in_line(self, lane: int, first: int) -> list[tuple[int, Limit]]:
        rows = self._rows(hot.LIMITS_IN_LINE, (lane, first))
        return [(handler_id, Limit(key, n)) for handler_id, key, n in rows if key is not None]

    def load_limits(self, keys: Sequence[str]) -> tuple[dict[str, int], list[ParkedRow]]:
        if not self._limits_locked:
            self._limits_locked = True
            self._later(hot.NEW_GUARD, (self.namespace, LIMITS))
            self._later(hot.GUARD, (self.namespace, [LIMITS]))
        parameters = (self.namespace, list(keys))
        running, lines = self._later(hot.LIMITS_RUNNING, parameters), self._now(hot.LIMITS_PARKED, parameters)
        return {row[0]: row[1] for row in running.rows}, [ParkedRow(*row) for row in lines.rows]

    def write_turns(self, rows: Sequence[tuple[int, int]]) -> None:
        if rows:
            self._join(hot.WRITE_TURNS, ("seq", "tag"), rows)

    def move(self, seqs: Sequence[int], state: int) -> None:
        if seqs:
            self._later(hot.MOVE.format(listed(seqs)), (state,))

    # ── idempotency keys, named leases ──

    def find_keys(self, pairs: Sequence[tuple[int, str]]) -> list[KeyRow]:
        if not pairs:
            return []
        wanted = " OR ".join(["(queue_id=%s AND idem_key=%s)"] * len(pairs))
        return [KeyRow(*row) for row in self._rows(hot.FIND_KEYS + wanted, [value for pair in pairs for value in pair])]

    def write_keys(self, rows: Sequence[KeyRow]) -> None:
        if rows:
            self._insert(hot.WRITE_KEYS, sorted(rows))

    def take_lock(self, name: str, owner: str, now: int, ttl: int) -> bool:
        scope = self._scope(name)
        self._later(hot.TAKE_LOCK, {"name": scope, "owner": owner, "until": now + ttl, "now": now})
        return self._rows(hot.HOLDER, (scope,)) == [(owner,)]


def _place(value: Any) -> str:
    return "%s" if isinstance(value, str) else "NULL" if value is None else str(value)


def _queue_rows(queues: Sequence[tuple[Any, ...]], handlers: Sequence[tuple[Any, ...]]) -> list[QueueRow]:
    """Queues with their handlers, which come apart: MySQL's JSON_ARRAYAGG promises no order, and costs more."""
    of: dict[int, list[tuple[Any, ...]]] = {}
    for queue_id, *handler in handlers:
        of.setdefault(queue_id, []).append(tuple(handler))
    rows = [QueueRow(*row) for row in queues]
    for row in rows:
        row.handlers = msgspec.json.encode(of.get(row.queue_id, [])).decode()
    return rows
