"""One transaction on PostgreSQL. Essay: locks, snapshots and exchanges.

*Locks.* Every verb that decides anything locks the rows of its queues first, in id order, and keeps them until its
commit: whoever holds a queue's row is alone with its tasks, flows and counts, as SQLite's writer is with its file, so
the same bodies serve both. Deciding without the lock and repairing afterwards was measured and lost (reserve.py).
Concurrency limits may be shared by queues; who touches them takes one lock for all limits of the namespace, after its
queues: keys are found while a claim looks at heads, so they cannot be locked in order one by one.

*Snapshots.* Under READ COMMITTED each statement sees what was committed when it began. A statement that waits for a
lock has begun before: what it reads beside the locked row is as old as the wait. So the lock is a statement of its
own, and what is to be true is read by the next one, in the same exchange.

*Exchanges.* What only writes is kept back (``_later``) and sent with the next question, or with COMMIT, as one
pipeline. BEGIN, the lock, the queues and the first heads of their lines are one exchange; what the claim marked comes
back with the COMMIT, as a promise. So a claim and a settle are two in all, and what is plain is one (short.py).

*Without the lock.* A plain publish looks at its queue, and where nothing but its own row is to change – no partition,
no key, no limit, no bound, nothing due that would have to come first – it adds the task (in one statement, or in two
exchanges in a user's transaction, where statements go one by one) and counts it in
``taskmq_count_deltas``. It holds a shared advisory lock of the queue's name, which meets only ``delete_queue``. One
thing can go wrong: the unpartitioned flow runs empty, or the first partition is born, between the look and the
commit. Then a task stands in a line that has not joined; the next claim looks, and lets it join (reserve.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import psycopg

from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.sql.codes import SHARED_BATCH
from taskmq.transport.sql.fragments import NEVER
from taskmq.transport.sql.postgresql import hot
from taskmq.transport.sql.postgresql.ahead import Ahead
from taskmq.transport.sql.postgresql.exchange import Line, NotSent, Parameters, Sent
from taskmq.transport.sql.postgresql.plain import PlainStatements
from taskmq.transport.sql.postgresql.words import NEXT_DUE, WORDS, integers
from taskmq.transport.sql.rare import Rare
from taskmq.transport.sql.rows import (
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
"""Rows among which the deltas of one count are spread."""
LONG_SLOTS = range(SLOTS, 1 << 15)
"""For transactions of users, which may be open for long: nobody is to wait for them. Housekeeping folds them."""


def _json(rows: Sequence[msgspec.Struct]) -> str:
    return msgspec.json.encode(rows).decode()


class PgSession(PlainStatements, Rare):
    """One transaction on one connection. ``begin``: the statements that open it."""

    words: ClassVar[Words] = WORDS
    delete_keys: ClassVar[str] = hot.DELETE_KEYS
    batch = SHARED_BATCH
    shared = True

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], namespace: str, begin: Sequence[str]) -> None:
        self.namespace = namespace
        self.committing = False
        """Whether COMMIT may have reached the server."""
        self._connection = connection
        self._pending = [Sent(statement, ()) for statement in begin]
        self._ahead = Ahead()
        self._foreseen: tuple[list[int], Sent] | None = None
        """Tasks that were asked for in the exchange of the lock."""
        self._limits_locked = False
        self.unlocked: Unlocked | None = None
        self.short: Short | None = self
        self.slots = range(SLOTS)
        """Where deltas of counts go."""

    # ── exchanges ──

    def _later(self, statement: str, parameters: Parameters = ()) -> Sent:
        """Send it with the next question; its answer is there after that."""
        sent = Sent(statement, parameters)
        self._pending.append(sent)
        return sent

    def _rows(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """The rows of a question, after all that was kept back."""
        sent = self._later(statement, parameters)
        self.send()
        return sent.rows

    def send(self) -> None:
        """Send what was kept back, in one exchange, and leave the end of the transaction to others."""
        pending, self._pending = self._pending, []
        if pending:
            self._exchange(pending)

    def _exchange(self, pending: Sequence[Sent]) -> None:
        assert isinstance(self._connection, Line)
        self._connection.exchanger.run(pending)

    def commit(self) -> None:
        """Send what was kept back, and commit.

        ``committing`` stays set where nobody knows: not when nothing was sent, nor when something before was refused.
        """
        before = self._pending[:]
        self._later("COMMIT")
        self.committing = True
        try:
            self.send()
        except psycopg.Error as error:
            self.committing = not (isinstance(error, NotSent) or any(sent.failed for sent in before))
            raise
        self.committing = False

    def _ask(self, statement: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        return self._rows(WORDS.text(statement), WORDS.values(parameters))

    def _tell(self, statement: str, /, **parameters: Any) -> None:
        self._ahead.clear()
        self._later(WORDS.text(statement), WORDS.values(parameters))

    def _count(self, statement: str, /, **parameters: Any) -> int:
        sent = self._later(WORDS.text(statement), WORDS.values(parameters))
        self.send()
        return sent.count

    # ── queues ──

    def lock_queues(self, names: Sequence[str], look: int = 0, seqs: Sequence[int] = ()) -> list[QueueRow]:
        wanted = sorted(set(names))
        if not wanted:
            return []
        parameters = {"namespace": self.namespace, "names": wanted, "look": look}
        locked, rows = self._lock(parameters, look, seqs)
        if locked < len(wanted):
            self._later(hot.NEW_QUEUES, parameters)
            locked, rows = self._lock(parameters, look, seqs)
        return rows

    def _lock(self, parameters: Mapping[str, Any], look: int, seqs: Sequence[int]) -> tuple[int, list[QueueRow]]:
        """How many rows were locked, and the rows; one that another session made in between is there, but not ours."""
        locked, found = self._later(hot.LOCK, parameters), self._later(hot.QUEUES, parameters)
        if look:
            lines, flows = self._later(hot.FIRST_LINES, parameters), self._later(hot.FIRST_FLOWS, parameters)
        tasks = self._later(hot.BY_SEQ_LOCKED, (integers(seqs), self.namespace)) if seqs else None
        self.send()
        self._foreseen = None if tasks is None else (list(seqs), tasks)
        rows = [QueueRow(*row) for row in found.rows]
        if look:
            self._ahead.take(rows, lines.rows, flows.rows, look)
        return locked.count, rows

    def lock_later(self, names: Sequence[str]) -> None:
        self._later(hot.LOCK, {"namespace": self.namespace, "names": list(names)})

    def write_queues(self, rows: Sequence[QueueRow]) -> None:
        for row in rows:
            turns = (row.served, row.v, row.j, row.utag, row.ulive, row.flows)
            self._later(hot.WRITE_QUEUE, (*turns, row.level, row.level_at, row.open_at, row.limited, row.queue_id))

    def add_handler(self, queue_id: int, name: str, version: str, keyed: bool) -> int:
        return int(self._rows(hot.ADD_HANDLER, (queue_id, name, version, int(keyed)))[0][0])

    def add_counts(self, rows: Sequence[CountRow]) -> None:
        if rows:
            self._later(hot.ADD_COUNTS, [integers(column) for column in zip(*rows, strict=True)])

    # ── without the lock ──

    def look_at_queues(self, names: Sequence[str], ids: Sequence[str]) -> tuple[list[QueueRow], set[str]]:
        wanted = sorted(set(names))
        self._later(hot.GUARD_SHARED, ([f"{self.namespace}:{name}" for name in wanted],))
        parameters = {"namespace": self.namespace, "names": wanted}
        found, known = self._later(hot.QUEUES, parameters), self._later(hot.KNOWN_IDS, {"ids": list(ids)})
        self.send()
        return [QueueRow(*row) for row in found.rows], {row[0] for row in known.rows}

    def append_tasks(self, rows: Sequence[NewTask]) -> None:
        if rows:
            self._later(hot.APPEND_TASKS, (_json(rows),))

    def add_deltas(self, rows: Sequence[CountRow]) -> None:
        if rows:
            self._later(
                hot.ADD_DELTAS, [random.choice(self.slots), *(integers(column) for column in zip(*rows, strict=True))]
            )

    def fold_deltas(self, limit: int) -> None:
        """Bring the deltas of users' transactions into the few rows of all others."""
        self._later(hot.FOLD_DELTAS, (limit, random.randrange(SLOTS)))

    def guard_names(self, names: Sequence[str]) -> None:
        self._later(hot.GUARD, ([f"{self.namespace}:{name}" for name in sorted(set(names))],))

    # ── flows ──

    def flows_by_code(self, queue_id: int, codes: Sequence[str]) -> list[FlowRow]:
        return self._flows(hot.FLOWS_BY_CODE, (list(codes), queue_id)) if codes else []

    def flows_by_id(self, flow_ids: Sequence[int]) -> list[FlowRow]:
        return self._flows(hot.FLOWS_BY_ID, (integers(flow_ids),)) if flow_ids else []

    def flows_in_turn(self, queue_id: int, offset: int, limit: int, handler: int | None = None) -> list[FlowRow]:
        if handler is not None:
            return self._flows(hot.FLOWS_OF_HANDLER, (handler, limit, offset))
        known = self._ahead.flows_in_turn(queue_id, offset, limit)
        return self._flows(hot.FLOWS_IN_TURN, (queue_id, limit, offset)) if known is None else known

    def flows_due(self, queue_id: int, now: int, limit: int) -> list[FlowRow]:
        return self._flows(hot.FLOWS_DUE, (queue_id, now, limit))

    def _flows(self, statement: str, parameters: Parameters) -> list[FlowRow]:
        return [FlowRow(*row) for row in self._rows(statement, parameters)]

    def write_flows(self, queue_id: int, aging: bool, flows: Sequence[FlowRow]) -> None:
        if not flows:
            return
        self._ahead.forget_flows()
        gone = [flow.flow_id for flow in flows if flow.gone and not flow.new]
        old = [flow_values(flow, queue_id, aging) for flow in flows if not flow.new and not flow.gone]
        new = [flow_values(flow, queue_id, aging) for flow in flows if flow.new and not flow.gone]
        if gone:  # first: a partition may have been born again under the same code
            self._later(hot.DELETE_FLOWS, (integers(gone),))
        if old:
            self._later(hot.UPDATE_FLOWS, (_json(old),))
        if new:
            self._later(hot.INSERT_FLOWS, (_json(new),))

    # ── lines ──

    def line(self, lane: int, offset: int, limit: int) -> list[Key]:
        known = self._ahead.line(lane, offset, limit)
        if known is None:
            known = [(row[0], row[1], row[2], row[3]) for row in self._rows(hot.LINE, (lane, limit, offset))]
        return known

    def heads(self, lanes: Sequence[int], offset: int, limit: int) -> dict[int, list[Key]]:
        heads: dict[int, list[Key]] = {}
        unknown = []
        for lane in lanes:
            known = self._ahead.line(lane, offset, limit)
            if known is None:
                unknown.append(lane)
            else:
                heads[lane] = known
        for row in self._rows(hot.HEADS, (integers(unknown), limit, offset)) if unknown else ():
            heads.setdefault(row[0], []).append((row[1], row[2], row[3], row[4]))
        return heads

    # ── tasks ──

    def next_seqs(self, count: int) -> Sequence[int]:
        return sorted(row[0] for row in self._rows(hot.NEXT_SEQS, (count,))) if count else ()

    def spare_flow_id(self) -> int:
        return int(self._rows(hot.SPARE_FLOW_ID)[0][0])

    def insert_tasks(self, rows: Sequence[NewTask]) -> None:
        if rows:
            self._ahead.clear()
            self._later(hot.INSERT_TASKS, (_json(rows),))

    def known_ids(self, ids: Sequence[str]) -> set[str]:
        return {row[0] for row in self._rows(hot.KNOWN_IDS, {"ids": list(ids)})}

    def due_tasks(self, queue_id: int, now: int, limit: int) -> list[DueTask]:
        return [DueTask(*row) for row in self._rows(hot.DUE_TASKS, (queue_id, now, limit))]

    def next_due(self, names: Sequence[str], now: int) -> Promise[int | None]:
        due = self._later(NEXT_DUE, {"namespace": self.namespace, "names": list(names), "now": now})

        def answer() -> int | None:
            moment: int = due.rows[0][0]
            return None if moment == NEVER else moment

        return answer

    def make_ready(self, rows: Sequence[Entry]) -> None:
        if rows:
            self._ahead.clear()
            self._later(hot.MAKE_READY, [integers(column) for column in zip(*rows, strict=True)])

    def claim(
        self, picks: Sequence[tuple[int, int | None]], worker: str, until: int, batch: int
    ) -> Promise[list[ClaimedTask]]:
        self._ahead.clear()
        seqs = integers(seq for seq, _ in picks)
        runs = "{" + ",".join("f" if run is None else "t" for _, run in picks) + "}"
        claimed = self._later(hot.CLAIM, (seqs, runs, until, worker, batch))
        return lambda: [ClaimedTask(*row) for row in claimed.rows]

    def tasks_by_seq(self, seqs: Sequence[int], *, lock: bool = False) -> list[TaskRow]:
        foreseen, self._foreseen = self._foreseen, None
        if lock and foreseen is not None and foreseen[0] == seqs:
            return [TaskRow(*row) for row in foreseen[1].rows]
        statement = hot.BY_SEQ_LOCKED if lock else hot.BY_SEQ
        return self._tasks(statement, (integers(seqs), self.namespace)) if seqs else []

    def run_mates(self, lanes: Sequence[int]) -> list[TaskRow]:
        return self._tasks(hot.RUN_MATES, (integers(lanes),)) if lanes else []

    def ended_leases(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        return self._tasks(hot.ENDED_LEASES, {"queue": queue_id, "now": now, "last": limit - 1})

    def first_in_hands(self, queue_id: int, batches: Sequence[int]) -> list[int]:
        return [row[0] for row in self._rows(hot.FIRST_IN_HANDS, (queue_id, integers(batches)))] if batches else []

    def expired(self, queue_id: int, now: int, limit: int) -> list[TaskRow]:
        return self._tasks(hot.EXPIRED, (queue_id, now, limit))

    def _tasks(self, statement: str, parameters: Parameters) -> list[TaskRow]:
        return [TaskRow(*row) for row in self._rows(statement, parameters)]

    def attempt_logs(self, seqs: Sequence[int]) -> dict[int, str | None]:
        return {row[0]: row[1] for row in self._rows(hot.ATTEMPT_LOGS, (integers(seqs),))} if seqs else {}

    def update_tasks(self, rows: Sequence[TaskUpdate]) -> None:
        if rows:
            self._ahead.clear()
            self._later(hot.UPDATE_TASKS, (_json(rows),))

    def renew(self, rows: Sequence[Renewal], now: int) -> None:
        if rows:
            self._later(hot.RENEW, (_json(rows), now))

    def succeed(self, rows: Sequence[Success], now: int, keep: int) -> None:
        if rows:  # none of them stands in a line
            self._later(hot.SUCCEED, (_json(rows), now, now, keep))

    def finish(self, rows: Sequence[Ending], now: int) -> None:
        if rows:
            self._ahead.clear()
            self._later(hot.FINISH, (_json(rows), now))

    # ── concurrency limits ──

    def limits_of(self, seqs: Sequence[int]) -> dict[int, Limit]:
        rows = self._rows(hot.LIMITS_OF, (integers(seqs),)) if seqs else ()
        return {seq: Limit(key, n) for seq, key, n in rows}

    def limits_in_line(self, lane: int, first: int) -> list[tuple[int, Limit]]:
        rows = self._rows(hot.LIMITS_IN_LINE, (lane, first))
        return [(handler_id, Limit(key, n)) for handler_id, key, n in rows]

    def load_limits(self, keys: Sequence[str]) -> tuple[dict[str, int], list[ParkedRow]]:
        if not self._limits_locked:
            self._limits_locked = True
            self._later(hot.LOCK_LIMITS, (self.namespace,))
        parameters = (self.namespace, list(keys))
        running, lines = self._later(hot.LIMITS_RUNNING, parameters), self._later(hot.LIMITS_PARKED, parameters)
        self.send()
        return {row[0]: row[1] for row in running.rows}, [ParkedRow(*row) for row in lines.rows]

    def write_turns(self, rows: Sequence[tuple[int, int]]) -> None:
        if rows:
            self._later(hot.WRITE_TURNS, [integers(column) for column in zip(*rows, strict=True)])

    def move(self, seqs: Sequence[int], state: int) -> None:
        if seqs:
            self._ahead.clear()
            self._later(hot.MOVE, (state, integers(seqs)))

    # ── idempotency keys ──

    def find_keys(self, pairs: Sequence[tuple[int, str]]) -> list[KeyRow]:
        if not pairs:
            return []
        rows = self._rows(hot.FIND_KEYS, (integers(pair[0] for pair in pairs), [pair[1] for pair in pairs]))
        return [KeyRow(*row) for row in rows]

    def write_keys(self, rows: Sequence[KeyRow]) -> None:
        if rows:
            queues, keys, tasks, digests, ends = zip(*sorted(rows), strict=True)
            self._later(hot.WRITE_KEYS, (integers(queues), list(keys), list(tasks), list(digests), integers(ends)))
