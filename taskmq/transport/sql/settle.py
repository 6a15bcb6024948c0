"""Settle: load what the items touch, decide item by item in memory, write it all at once.

The decisions are sequential, because the order of joins is; the reads and writes are not. So a settle costs the same
few statements for one item and for a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from taskmq.message import DEFAULT_RETENTION_BAD, DEFAULT_RETENTION_OK, Delivery
from taskmq.outcome import Ack, Dead, Defer, Outcome, Retry, Yield
from taskmq.policy.lease import overriding_end
from taskmq.policy.order import sort_key
from taskmq.state import Attempt
from taskmq.transport.attempts import append_attempt, decode_log
from taskmq.transport.base import Settlement
from taskmq.transport.sql.book import Book
from taskmq.transport.sql.codes import (
    CODE_OF,
    COUNT_DEAD,
    COUNT_READY,
    COUNT_RETRYING,
    COUNT_RUNNING,
    DUE,
    FAILED,
    KEY_UNTIL_END,
    KEY_WITH_RECORD,
    READY,
    RUNNING,
    SUCCEEDED,
)
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.rows import Ending, Success, TaskRow, TaskUpdate


def settle(session: Session, items: Sequence[Settlement], books: dict[str, Book], now: int) -> list[bool]:
    """End deliveries, in order; False where the lease was lost. The books of their queues are open, and stay so."""
    tasks = held_tasks(session, [item.delivery for item in items], lock=True)
    held = [task for task in tasks if task is not None]
    if not held:
        return [False] * len(items)
    hands = Hands(session, now, books.values())
    hands.load(held)
    hands.load_logs([t.seq for t, i in zip(tasks, items, strict=True) if t and isinstance(i.outcome, (Retry, Dead))])
    results = [
        task is not None and task.state == RUNNING and hands.settle(task, item.outcome, item.started_ago)
        for task, item in zip(tasks, items, strict=True)
    ]
    hands.flush()
    for book in books.values():
        book.look_for_missed()
    return results


def held_tasks(session: Session, deliveries: Sequence[Delivery], *, lock: bool = False) -> list[TaskRow | None]:
    """Their tasks, None where this delivery is not the one that holds it any more."""
    rows = {row.seq: row for row in session.tasks_by_seq([delivery.token or 0 for delivery in deliveries], lock=lock)}
    tasks = [rows.get(delivery.token or 0) for delivery in deliveries]
    return [
        task
        if task is not None and (task.state, task.epoch, task.id) == (RUNNING, delivery.epoch, delivery.id)
        else None
        for task, delivery in zip(tasks, deliveries, strict=True)
    ]


class Hands:
    """Tasks on their way out of workers' hands, in one transaction."""

    def __init__(self, session: Session, now: int, books: Iterable[Book]) -> None:
        self.session = session
        self.now = now
        self.books = {book.row.queue_id: book for book in books}
        self._mates: dict[int, list[TaskRow]] = {}
        self._logs: dict[int, list[Attempt]] = {}
        self._updated: list[TaskUpdate] = []
        self._succeeded: list[Success] = []
        self._finished: list[Ending] = []
        self._freed: list[tuple[int, str, str]] = []
        self.receipt: str | None = None
        """Digest of the settle that comes next, for the history: set by those whose settles may be repeated."""

    # ── loading ──

    def load(self, tasks: Iterable[TaskRow]) -> None:
        """Load the tasks' flows, the heads behind running ordered ones, and the rest of their runs."""
        by_queue: dict[int, set[int]] = {}
        for task in tasks:
            if task.lane > 0:
                by_queue.setdefault(task.queue_id, set()).add(task.lane)
        for queue_id, lanes in by_queue.items():
            book = self.books[queue_id]
            book.load_ids(sorted(lanes))
            ordered = [book.by_id[lane] for lane in sorted(lanes) if book.by_id[lane].ordered]
            heads = self.session.heads([flow.flow_id for flow in ordered], 0, 1)
            for flow in ordered:
                flow.head = next(iter(heads.get(flow.flow_id, [])), None)
        known = {task.seq: task for task in tasks}
        limits = [task.limit for task in known.values() if task.limit_key is not None]
        for book in self.books.values() if limits else ():
            book.limits.load(limits)
        lanes_in_runs = sorted({task.run_lane for task in known.values() if task.run_lane is not None})
        for mate in self.session.run_mates(lanes_in_runs):
            self._mates.setdefault(mate.lane, []).append(known.get(mate.seq, mate))

    def load_logs(self, seqs: Sequence[int]) -> None:
        """Load the histories of tasks that will get one more failed attempt."""
        for seq, log in self.session.attempt_logs(seqs).items():
            self._logs[seq] = decode_log(log)

    # ── decisions ──

    def settle(self, task: TaskRow, outcome: Outcome, started_ago: int | None) -> bool:
        """One outcome; False if the task stands behind the head of its run."""
        if started_ago is not None:
            task.started_at = self.now - started_ago
        if task.lane < 0 and isinstance(outcome, Ack):  # unpartitioned: nobody waits for it
            self.release(task)
            self.succeed(task, outcome.result)
            return True
        book = self.books[task.queue_id]
        flow = book.lane(task.lane)
        if not isinstance(outcome, Yield) and any(mate.key < task.key for mate in self._running_mates(task)):
            return False  # a follower before its head is as stale as an old epoch
        if isinstance(outcome, (Retry, Dead)):
            task.attempts += 1
            kind = "retry" if isinstance(outcome, Retry) else "dead"
            self.log(task, kind, outcome.error, outcome.traceback)
        elif isinstance(outcome, Defer) and self.receipt is not None:
            self.log(task, "defer")
        doom = self.doom(task)
        held = isinstance(outcome, Dead) and doom is None and flow.ordered and bool(book.row.hold)
        if held or isinstance(outcome, (Retry, Defer, Yield)):
            for mate in reversed(self._running_mates(task)):
                if mate.key > task.key:
                    self.hand_back(mate)
        self.release(task)
        if isinstance(outcome, Ack):
            self.succeed(task, outcome.result)
        elif doom is not None:
            self.finish(task, doom)
        elif isinstance(outcome, Dead):
            if held:
                flow.held_by = task.id
            self.finish(task, FAILED, reason=outcome.reason, error=outcome.error, traceback=outcome.traceback)
        elif isinstance(outcome, Yield):
            self.stand(task)
        else:
            self._put_off(task, outcome.delay, outcome.partition)
        book.place(flow)
        return True

    def doom(self, task: TaskRow) -> int | None:
        """The number of the state in which it ends whatever its outcome, unless that is an ack."""
        end = overriding_end(cancel_requested=bool(task.cancel_requested), deadline_at=task.deadline_at, now=self.now)
        return None if end is None else CODE_OF[end]

    def log(self, task: TaskRow, outcome: str, error: str | None = None, traceback: str | None = None) -> None:
        """One more failed attempt in the task's history."""
        append_attempt(
            self._logs.setdefault(task.seq, []),
            Attempt(
                attempt=task.attempts,
                epoch=task.epoch,
                ended_at=self.now,
                outcome=outcome,
                error=error,
                traceback=traceback,
                worker=task.worker,
                started_at=task.started_at,
                digest=None if outcome == "lease expired" else self.receipt,
            ),
        )

    def _running_mates(self, task: TaskRow) -> list[TaskRow]:
        return [mate for mate in self._mates.get(task.lane, ()) if mate.state == RUNNING]

    def mates(self, task: TaskRow) -> list[TaskRow]:
        """The running tasks of the same run, this one included, in order; just the task when it runs alone."""
        return self._running_mates(task) or [task]

    # ── moves ──

    def release(self, task: TaskRow) -> None:
        """Out of the worker's hands."""
        book = self.books[task.queue_id]
        flow = book.lane(task.lane)
        task.state = READY
        book.count(task.handler_id, task.priority, out=COUNT_RUNNING)
        if flow is not book.plain:
            flow.n_run, flow.dirty = flow.n_run - 1, True
        book.row.running -= 1
        if (limit := task.limit) is not None:
            book.limits.change(limit).release()

    def stand(self, task: TaskRow) -> None:
        """Back in line, in its place."""
        book = self.books[task.queue_id]
        book.stand(book.lane(task.lane), task.key)
        book.count(task.handler_id, task.priority, into=COUNT_READY)
        self._update(task, None)

    def hand_back(self, task: TaskRow) -> None:
        """Out of hands and back in its place, unblamed."""
        self.release(task)
        doom = self.doom(task)
        if doom is not None:
            self.finish(task, doom)
        else:
            self.stand(task)

    def _put_off(self, task: TaskRow, delay: int, whole_partition: bool) -> None:
        """Retry or defer: an ordered partition waits in place; otherwise the task waits aside."""
        book = self.books[task.queue_id]
        flow = book.lane(task.lane)
        due = self.now + delay
        task.retry_at = due if delay else None
        task.expires_at = task.deadline_at  # it was started in time
        if not flow.ordered:
            task.available_at = due
            task.s1, task.s2, _ = sort_key(book.row.aging_us, task.priority, due, task.seq)
        if flow.ordered or (whole_partition and flow is not book.plain):
            self.stand(task)
            if delay:
                book.block(flow, due, task.seq)
        elif delay:
            task.state = DUE
            flow.n_wait += 1
            book.count(task.handler_id, task.priority, into=COUNT_RETRYING)
            self._update(task, due)
        else:
            book.count(task.handler_id, task.priority, into=COUNT_READY)
            task.state = book.enter(flow, task.key, task.pweight, task.pmax, task.limit)
            self._update(task, None)

    def _update(self, task: TaskRow, due: int | None) -> None:
        if task.expires_at is not None:  # it waits again, and may be too late to start already
            row = self.books[task.queue_id].row
            row.expire_at = task.expires_at if row.expire_at is None else min(row.expire_at, task.expires_at)
        log = self._logs.get(task.seq)
        text = msgspec.json.encode(log).decode() if log else None
        counters = (task.attempts, task.blamed, task.expiries)
        self._updated.append(
            TaskUpdate(task.state, due, task.retry_at, task.available_at, task.expires_at, *counters, text, task.seq)
        )

    def succeed(self, task: TaskRow, result: bytes | None) -> None:
        """Ended well."""
        task.state = SUCCEEDED
        self._succeeded.append(Success(task.seq, task.started_at, None if result is None else result.decode()))
        if task.idem_key is not None:
            self._free_key(task, task.idem_key, DEFAULT_RETENTION_OK if task.retention is None else task.retention)

    def finish(
        self,
        task: TaskRow,
        state: int,
        *,
        reason: str | None = None,
        error: str | None = None,
        traceback: str | None = None,
    ) -> None:
        """Ended otherwise: into the history, or away at once when nothing is to be kept."""
        task.state = state
        keep = DEFAULT_RETENTION_BAD if task.retention is None else task.retention
        log = self._logs.get(task.seq)
        text = msgspec.json.encode(log).decode() if log else None
        delete_at = self.now + keep if keep > 0 else None
        if state == FAILED and keep > 0:
            self.books[task.queue_id].count(task.handler_id, task.priority, into=COUNT_DEAD)
        words = (reason, error, traceback)
        self._finished.append(Ending(task.seq, state, task.attempts, text, delete_at, *words, task.started_at))
        if task.idem_key is not None:
            self._free_key(task, task.idem_key, keep)

    def _free_key(self, task: TaskRow, key: str, keep: int) -> None:
        if task.key_mode == KEY_UNTIL_END or (task.key_mode == KEY_WITH_RECORD and keep <= 0):
            self._freed.append((task.queue_id, key, task.id))

    def flush(self) -> None:
        """Write what became of the tasks; the queues' books are flushed by who opened them."""
        self.session.update_tasks(self._updated)
        self.session.succeed(self._succeeded, self.now, DEFAULT_RETENTION_OK)
        self.session.finish(self._finished, self.now)
        self.session.free_keys(self._freed)
