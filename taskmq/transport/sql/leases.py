"""What happens to tasks without a worker's word: ended leases are reaped, late starts expire."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from taskmq.policy.lease import DIED, reason_of_death
from taskmq.transport.base import Maintained, Renewed
from taskmq.transport.base import Renewal as RenewalWish
from taskmq.transport.sql.book import Book, open_books
from taskmq.transport.sql.codes import (
    COUNT_READY,
    COUNT_RETRYING,
    COUNT_SCHEDULED,
    DUE,
    EXPIRED,
    FAILED,
    PARKED,
    READY,
    RUNNING,
)
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.rows import FlowRow, Renewal, TaskRow
from taskmq.transport.sql.settle import Hands, held_tasks


def extend(session: Session, items: Sequence[RenewalWish], now: int) -> list[Renewed]:
    """Renew leases and mark started tasks."""
    if session.shared:  # what a settle or a reaper has in its hands must not be renewed behind its back
        session.lock_queues(sorted({item.delivery.queue for item in items}))
    answers: list[Renewed] = []
    started: dict[int, bool] = {}
    ends: dict[int, int] = {}
    news: dict[int, str] = {}
    for item, task in zip(items, held_tasks(session, [item.delivery for item in items]), strict=True):
        if task is None:
            answers.append(Renewed(None))
            continue
        delivery = item.delivery
        started[task.seq] = started.get(task.seq, False) or item.started
        ends[task.seq] = now + delivery.lease
        if item.progress is not None:
            news[task.seq] = msgspec.json.encode(item.progress).decode()
        answers.append(Renewed(now + delivery.lease, bool(task.cancel_requested)))
    session.renew([Renewal(seq, ends[seq], started[seq], news.get(seq)) for seq in ends], now)
    return answers


def reap(session: Session, book: Book, now: int, limit: int) -> int:
    """Take back the queue's tasks whose lease is over; leases that end together are judged together."""
    ended = session.ended_leases(book.row.queue_id, now, limit)
    hands = Hands(session, now, [book])
    hands.load(ended)
    hands.load_logs([task.seq for task in ended])
    # Who was started: named by a heartbeat, or the first unsettled of its batch (in this queue) or of its run.
    batches = sorted({task.batch for task in ended if task.batch is not None and task.batch > 0})
    blamed = {*session.first_in_hands(book.row.queue_id, batches), *(task.seq for task in ended if task.started)}
    for task in ended:
        if task.state == RUNNING:
            lose(hands, task, blamed, now)
    hands.flush()
    book.row.lease_end = None
    return len(ended)


def lose(hands: Hands, task: TaskRow, blamed: set[int], now: int) -> None:
    """A lost task, and everything behind it in its run: what ended is counted, the rest goes back unblamed."""
    run = hands.mates(task)
    first = next(position for position, mate in enumerate(run) if mate.due_at <= now)
    for mate in reversed(run[first:]):
        if mate.due_at > now:
            hands.hand_back(mate)
    for mate in run[first:]:
        if mate.due_at <= now:
            _count(hands, mate, mate.seq in blamed)
    book = hands.books[task.queue_id]
    book.place(book.lane(task.lane))


def _count(hands: Hands, task: TaskRow, blamed: bool) -> None:
    """An ended lease: back in line, or ended for good."""
    task.expiries += 1
    if blamed:
        task.blamed += 1
        task.attempts += 1
        task.expires_at = task.deadline_at
        hands.log(task, "lease expired")
    book = hands.books[task.queue_id]
    hands.release(task)
    reason = reason_of_death(
        attempts=task.attempts, max_attempts=task.max_attempts, blamed=task.blamed, expiries=task.expiries
    )
    doom = hands.doom(task)
    if doom is not None:
        hands.finish(task, doom)
    elif reason is not None:
        flow = book.lane(task.lane)
        if flow.ordered and book.row.hold:
            flow.held_by = task.id
        hands.finish(task, FAILED, reason=reason, error=DIED)
    else:
        hands.stand(task)


def expire(session: Session, book: Book, now: int, limit: int) -> int:
    """End waiting tasks that were not started in time; they take no turn."""
    tasks = session.expired(book.row.queue_id, now, limit)
    drop(session, book, tasks, EXPIRED, now)
    book.row.expire_at = None
    return len(tasks)


def drop(
    session: Session,
    book: Book,
    tasks: Sequence[TaskRow],
    state: int,
    now: int,
    *,
    reason: str | None = None,
    error: str | None = None,
) -> None:
    """End waiting tasks of one queue without running them."""
    hands = Hands(session, now, [book])
    book.load_ids(sorted({task.lane for task in tasks}))
    book.limits.load(task.limit for task in tasks)
    reheaded = {}
    for task in tasks:
        if task.lane:
            flow = book.lane(task.lane)
            _out_of_line(book, flow, task)
            reheaded[flow.flow_id] = flow
        else:
            book.count(task.handler_id, task.priority, out=COUNT_SCHEDULED)
        hands.finish(task, state, reason=reason, error=error)
    hands.flush()
    book.reread_heads([flow for flow in reheaded.values() if not (flow.ordered and flow.n_run)])


def _out_of_line(book: Book, flow: FlowRow, task: TaskRow) -> None:
    """A task that waits goes for good, from wherever it waits."""
    limit = task.limit
    if task.state == DUE:
        book.count(task.handler_id, task.priority, out=COUNT_RETRYING)
        if flow is not book.plain:
            flow.n_wait, flow.dirty = flow.n_wait - 1, True
        return
    book.count(task.handler_id, task.priority, out=COUNT_READY)
    if flow.ordered and flow.blocked_seq == task.seq:  # its delay ends with it
        flow.blocked_until, flow.blocked_seq, flow.dirty = None, None, True
    if task.state == PARKED and limit is not None:
        book.session.move([task.seq], READY)
        book.unpark(flow, limit, task)
    elif limit is not None:
        book.limits.change(limit).missed(task.handler_id, limit.n)


def return_parked(session: Session, book: Book, limit: int) -> int:
    """Put parked tasks that are owed a return back in their places, by their limits' keys; how many moved."""
    if not book.row.limited:
        return 0
    moved = 0
    book.limits.flush()  # a settle of this transaction may owe something
    owing = session.owing(book.row.queue_id)
    book.limits.load(owed for _, owed in owing)
    for handler_id, owed in owing:
        key = book.limits.change(owed)
        while moved < limit and key.owed(handler_id, owed.n):
            task = session.next_parked(handler_id, owed)
            session.move([task.seq], READY)
            book.load_ids([task.lane])
            flow = book.lane(task.lane)
            book.unpark(flow, owed, task)
            book.stand(flow, task.key)
            book.place(flow)
            moved += 1
            # Where it cannot take the slot, the next one returns, too.
            if flow is book.plain or (flow.live and not (flow.ordered and flow.head != task.key)):
                key.returned(handler_id, owed.n)
    return moved


def tidy_queue(session: Session, queue: str, now: int, limit: int) -> Maintained:
    """Promote, reap and expire one bounded batch of a queue."""
    with open_books(session, [queue], now, limit) as books:
        book = books[queue]
        row, promoted = book.row, book.promoted
        reaped = reap(session, book, now, limit) if row.lease_end is not None and row.lease_end <= now else 0
        expired = expire(session, book, now, limit) if row.expire_at is not None and row.expire_at <= now else 0
    return Maintained(promoted=promoted, reaped=reaped, more=max(promoted, reaped, expired) >= limit)
