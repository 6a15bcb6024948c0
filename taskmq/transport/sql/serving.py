"""``Serving`` over the tables: the steps of a delivery, each checked against the session and epoch that hold it.

Steps change lines and flows as settles do, so they take the locks of their queues. ``keep`` does not: it must never
wait behind a claim. Neither do starts that change nothing but their own rows, where one transaction writes at a time or
whoever takes tasks out of workers' hands locks their rows (short.py): a reaper that has read a reservation as ended
must not meet it started. Elsewhere they need the lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from taskmq.errors import TransportUnavailable
from taskmq.outcome import Ack, Dead, Defer, Retry, Yield
from taskmq.policy.claim import UNPARTITIONED
from taskmq.policy.lease import MAX_ATTEMPTS
from taskmq.queue import Limit
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import Found
from taskmq.transport.serving import (
    Begin,
    Begun,
    End,
    Ended,
    Forfeit,
    HandBack,
    Held,
    Keep,
    Kept,
    Keyed,
    Refusal,
    Revival,
    Search,
    Step,
    StepResult,
)
from taskmq.transport.sql import control, leases
from taskmq.transport.sql.book import Book, open_books
from taskmq.transport.sql.codes import COUNT_DEAD, COUNT_RETRYING, DUE, ENDED, FAILED, RUNNING
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.inspect import SqlInspect, task_info
from taskmq.transport.sql.rows import DeadLetter, Place, Renewal, TaskRow, TaskUpdate
from taskmq.transport.sql.settle import Hands

LOST = Refusal("lost")
TRIES = 3


class _Moved(Exception):
    """What was looked at is not as it was thought to be: undo, and begin again."""


TIMEOUT_SLACK = 1_500_000
"""Microseconds that a lease outlasts its task's timeout, in which who serves the task ends it and says so."""


class SqlServing(SqlInspect):
    """What a server needs beyond the store's other two protocols."""

    def steps(self, session: str, steps: Sequence[Step]) -> list[StepResult]:
        """Do these steps of one session, in order, in one transaction."""
        return self.steps_of_all([(session, steps)])[0]

    def steps_of_all(self, calls: Sequence[tuple[str, Sequence[Step]]]) -> list[list[StepResult]]:
        """Do the steps of several sessions, in order, in one transaction."""
        if not any(steps for _, steps in calls):
            return [[] for _ in calls]
        queues: set[str] = set()
        try:
            results = self._engine.write(lambda s: _Steps(s, self._clock.now(), queues).start(calls))
        except _Moved:
            results = self._engine.write(lambda s: _Steps(s, self._clock.now(), queues).run(calls))
        if any(not isinstance(step, Begin) for _, steps in calls for step in steps):
            self._engine.signal(queues)
        return results

    def keep(self, session: str, items: Sequence[Keep], *, reserve: int, longest: int) -> list[Kept]:
        """Renew what a session holds."""
        if not items:
            return []
        for _ in range(TRIES):
            with suppress(_Moved):
                return self._engine.write(
                    lambda s: _keep(s, session, items, self._clock.now(), reserve, longest), vital=True
                )
        raise TransportUnavailable("the tasks changed hands again and again while their leases were renewed")

    def held(self, session: str) -> list[Held]:
        """What a session holds."""
        rows = self._engine.read(lambda queries: queries.held_by(session))
        return [
            Held(
                task_id=row["id"],
                epoch=row["epoch"],
                queue=row["queue"],
                started=bool(row["started"]),
                attempt=row["attempts"] + 1,
                lease_until=row["due_at"],
            )
            for row in rows
        ]

    def withdraw(self, task_ids: Sequence[str]) -> list[TaskState | None]:
        """Cancel what waits or is reserved, ask what runs to stop."""
        states = self._engine.write(lambda s: _withdraw(s, task_ids, self._clock.now()))
        self._engine.signal()
        ended = {info.id: info.state for info in self.get([i for i in task_ids if i not in states]) if info}
        return [states.get(task_id) or ended.get(task_id) for task_id in task_ids]

    def revive(self, wish: Revival) -> TaskInfo | None:
        """Queue an ended task again with a new budget."""
        done = self._engine.write(lambda s: _revive(s, wish, self._clock.now()))
        self._engine.signal()
        return self.get([wish.task_id])[0] if done else None

    def search(self, params: Search) -> Found:
        """One page of tasks."""
        now = self._clock.now()
        rows = self._engine.read(lambda queries: queries.find(params, now))
        infos = [task_info(row, now) for row in rows[: params.limit]]
        return Found(tasks=infos, cursor=infos[-1].id if len(rows) > params.limit else None)

    def close_queue(self, queue: str) -> None:
        """Take nothing more into this queue until it is configured again."""

        def work(session: Session) -> None:
            for row in session.lock_queues([queue]):
                session.close(row.queue_id)

        self._engine.write(work)

    def keyed(self, queue: str, keys: Sequence[str]) -> dict[str, Keyed]:
        """Those of these idempotency keys that are taken."""
        return self._engine.read(lambda queries: queries.keyed(queue, keys, self._clock.now()))


def _may_log(step: Step) -> bool:
    """Whether it may add an attempt to its task's history."""
    return isinstance(step, Forfeit) or (isinstance(step, End) and not isinstance(step.outcome, Ack))


def _reserved(task: TaskRow) -> bool:
    """Whether it is claimed but no start is known, and none is to be guessed."""
    return not task.started and (task.batch or 0) < 0


class _Steps:
    """One transaction's steps. ``queues`` gets the names of the queues that it touches."""

    def __init__(self, session: Session, now: int, queues: set[str]) -> None:
        self._session = session
        self._now = now
        self._queues = queues
        self._tasks: dict[tuple[str | None, str, int], TaskRow] = {}
        """By who has it, id and epoch."""
        self._renewals: list[Renewal] = []
        self._books: dict[int, Book] = {}

    def start(self, calls: Sequence[tuple[str, Sequence[Step]]]) -> list[list[StepResult]]:
        """The same as ``run``, without the locks of the queues where there are simple starts only.

        Raises _Moved where they are not simple: their rows must not be locked before their queues are.
        """
        rows_lock = not self._session.shared or self._session.short is not None
        only_starts = all(isinstance(step, Begin) for _, steps in calls for step in steps)
        if not only_starts or not rows_lock:
            return self.run(calls)
        found = self._session.unfinished(sorted({step.task_id for _, steps in calls for step in steps}))
        rows = self._session.tasks_by_seq(sorted(seq for seq, _ in found.values()), lock=True)
        held = self._held(rows, {owner for owner, _ in calls})
        if any(row.run_lane is not None or self._too_late(row) for row in held):
            raise _Moved
        hands = Hands(self._session, self._now, ())
        results = [[self._step(hands, owner, step) for step in steps] for owner, steps in calls]
        self._session.renew(self._renewals, self._now)
        return results

    def run(self, calls: Sequence[tuple[str, Sequence[Step]]]) -> list[list[StepResult]]:
        """The answer to each step of each session."""
        found = self._session.unfinished(sorted({step.task_id for _, steps in calls for step in steps}))
        self._queues.update(queue for _, queue in found.values())
        if not found:
            return [[LOST for _ in steps] for _, steps in calls]
        owners = {owner for owner, _ in calls}
        with open_books(self._session, self._queues, self._now) as books:
            self._books = {book.row.queue_id: book for book in books.values()}
            rows = self._session.tasks_by_seq([seq for seq, _ in found.values()], lock=True)
            held = self._held(rows, owners)
            hands = Hands(self._session, self._now, books.values())
            hands.load(held)
            if any(map(_may_log, (step for _, steps in calls for step in steps))):
                hands.load_logs([row.seq for row in held])
            results = [[self._step(hands, owner, step) for step in steps] for owner, steps in calls]
            self._session.renew(self._renewals, self._now)
            hands.flush()
            for book in books.values():
                book.look_for_missed()
        return results

    def _held(self, rows: Sequence[TaskRow], owners: Collection[str]) -> list[TaskRow]:
        """Those of the tasks that one of these sessions has; remembered by who has it."""
        held = [row for row in rows if row.state == RUNNING and row.worker in owners]
        self._tasks = {(row.worker, row.id, row.epoch): row for row in held}
        return held

    def _too_late(self, task: TaskRow) -> bool:
        """Whether it must not be started any more."""
        late = task.expires_at is not None and task.expires_at <= self._now
        return late or bool(task.cancel_requested) or (task.deadline_at is not None and task.deadline_at <= self._now)

    def _step(self, hands: Hands, owner: str, step: Step) -> StepResult:
        task = self._tasks.get((owner, step.task_id, step.epoch))
        if task is None or task.state != RUNNING:
            return LOST
        if isinstance(step, Begin):
            return self._begin(hands, task, step)
        if isinstance(step, End):
            return self._end(hands, task, step)
        if isinstance(step, HandBack):
            return self._hand_back(hands, task) if _reserved(task) else LOST
        return self._forfeit(hands, task)

    def _begin(self, hands: Hands, task: TaskRow, step: Begin) -> StepResult:
        if task.started:
            return Begun(task.attempts + 1, task.due_at, self._now, repeated=True)
        if self._too_late(task):
            self._hand_back(hands, task)
            return LOST
        if any(mate.key < task.key for mate in hands.mates(task)):
            return Refusal("not_next")
        task.started, task.started_at = 1, self._now
        task.due_at = _lease_end(task, self._now, step.lease, step.timeout)
        self._renewals.append(Renewal(task.seq, task.due_at, True, None))
        return Begun(task.attempts + 1, task.due_at, self._now)

    def _end(self, hands: Hands, task: TaskRow, step: End) -> StepResult:
        if not task.started:
            return Refusal("not_started")
        outcome = step.outcome
        if isinstance(outcome, Retry) and task.attempts + 1 >= task.max_attempts:
            outcome = Dead(MAX_ATTEMPTS, outcome.error, outcome.traceback)
        behind = [mate for mate in hands.mates(task) if mate.key > task.key]
        hands.receipt = step.digest
        settled = hands.settle(task, outcome, None)
        hands.receipt = None
        if not settled:
            return Refusal("not_next")
        released = tuple((mate.id, mate.epoch) for mate in behind if mate.state != RUNNING)
        if task.state in ENDED:
            return Ended(ENDED[task.state], released=released)
        state = TaskState.SCHEDULED if isinstance(outcome, Defer) else TaskState.RETRYING
        delay = outcome.delay if isinstance(outcome, (Retry, Defer)) else 0
        return Ended(state, self._now + delay, released)

    def _hand_back(self, hands: Hands, task: TaskRow) -> StepResult:
        hands.settle(task, Yield(), None)
        return Ended(ENDED.get(task.state, TaskState.QUEUED))

    def _forfeit(self, hands: Hands, task: TaskRow) -> StepResult:
        if _reserved(task):
            return self._hand_back(hands, task)
        task.due_at = self._now
        leases.lose(hands, task, {task.seq}, self._now)
        return Ended(ENDED.get(task.state, TaskState.RETRYING))


def _lease_end(task: TaskRow, now: int, lease: int, timeout: int | None) -> int:
    """A lease does not reach beyond the task's deadline, and little beyond its timeout after its start.

    Who serves the task ends it when its timeout is over, and says so; the lease is there for when nobody does.
    """
    ends = [now + lease]
    if task.deadline_at is not None:
        ends.append(task.deadline_at)
    if timeout is not None and task.started_at is not None:
        ends.append(task.started_at + timeout + TIMEOUT_SLACK)
    return min(ends)


def _keep(session: Session, owner: str, items: Sequence[Keep], now: int, reserve: int, longest: int) -> list[Kept]:
    found = session.unfinished(sorted({item.task_id for item in items}))
    rows = {row.id: row for row in session.tasks_by_seq([seq for seq, _ in found.values()])}
    renewals: dict[int, Renewal] = {}
    answers: list[Kept] = []
    for item in items:
        task = rows.get(item.task_id)
        if task is None or (task.state, task.epoch, task.worker) != (RUNNING, item.epoch, owner):
            answers.append(Kept(None))
            continue
        until = _kept_until(task, now, item, reserve, longest)
        progress = None if item.progress is None else msgspec.json.encode(item.progress).decode()
        over = _over(task, now, item.timeout)
        if over is None:
            renewals[task.seq] = Renewal(task.seq, until, bool(task.started), progress)
        answers.append(Kept(until, bool(task.started), bool(task.cancel_requested), over))
    session.renew(list(renewals.values()), now)
    if session.shared and renewals:  # without the queue's lock: the rows are ours only now
        kept = {row.seq: row for row in session.tasks_by_seq(sorted(renewals))}
        for task in (row for row in rows.values() if row.seq in renewals):
            now_held = kept.get(task.seq)
            if now_held is None or (now_held.state, now_held.epoch, now_held.worker) != (RUNNING, task.epoch, owner):
                raise _Moved
    return answers


def _kept_until(task: TaskRow, now: int, item: Keep, reserve: int, longest: int) -> int:
    if _reserved(task):
        return min(now + reserve, longest - (task.batch or 0))
    return _lease_end(task, now, item.lease, item.timeout)


def _over(task: TaskRow, now: int, timeout: int | None) -> Literal["timeout", "deadline"] | None:
    if not task.started:
        return None
    if task.deadline_at is not None and task.deadline_at <= now:
        return "deadline"
    if timeout is not None and task.started_at is not None and task.started_at + timeout <= now:
        return "timeout"
    return None


def _withdraw(session: Session, task_ids: Sequence[str], now: int) -> dict[str, TaskState]:
    states = control.cancel(session, task_ids, now)
    asked = [task_id for task_id, state in states.items() if state is TaskState.RUNNING]
    found = session.unfinished(asked)
    if not found:
        return states
    with open_books(session, {queue for _, queue in found.values()}, now) as books:
        rows = session.tasks_by_seq([seq for seq, _ in found.values()], lock=True)
        reserved = [row for row in rows if row.state == RUNNING and _reserved(row)]
        hands = Hands(session, now, books.values())
        hands.load(reserved)
        for row in reserved:
            hands.settle(row, Yield(), None)  # with the request pending, back in line means cancelled
            states[row.id] = ENDED.get(row.state, TaskState.CANCELLED)
        hands.flush()
        for book in books.values():
            book.look_for_missed()
    return states


def _revive(session: Session, wish: Revival, now: int) -> bool:
    dead = session.dead_letter(wish.task_id)
    if dead is None or (wish.expected is not None and dead.replays != wish.expected):
        return False
    if dead.state == FAILED and (wish.available_at is None or wish.available_at <= now):
        return control.replay(session, [wish.task_id], None, now)[0]
    with open_books(session, [dead.queue], now) as books:
        book = books[dead.queue]
        control.lift_hold(book, dead.code, wish.task_id)
        if dead.state == FAILED:
            book.count(dead.handler_id, dead.priority, out=COUNT_DEAD)
        seq = session.next_seqs(1)[0]
        if wish.available_at is None or wish.available_at <= now:
            control.enter_again(session, book, wish.task_id, dead, seq, now)
        else:
            _revive_later(session, book, wish.task_id, dead, seq, wish.available_at)
        control.take_key(session, book, wish.task_id, dead, now)
    return True


def _revive_later(session: Session, book: Book, task_id: str, dead: DeadLetter, seq: int, at: int) -> None:
    """Out of the history, to enter its line when it is due, as a retried one does."""
    if dead.code is not None:
        book.load_codes([dead.code])
    flow = book.flow(dead.code or UNPARTITIONED, seq)
    limit = None if dead.limit_key is None else Limit(dead.limit_key, dead.limit_n or 1)
    handler_id = book.handler(dead.handler, dead.version, limit is not None)
    if flow is not book.plain:
        flow.n_wait, flow.dirty = flow.n_wait + 1, True
    book.count(handler_id, dead.priority, into=COUNT_RETRYING)
    session.revive(task_id, seq, book.row, Place(book.lane_of(flow, handler_id), DUE, handler_id), at)
    session.update_tasks([TaskUpdate(DUE, at, None, at, None, 0, 0, 0, None, seq)])


__all__ = ["SqlServing"]
