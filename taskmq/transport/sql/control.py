"""Operators' hands on partitions and dead letters; each a short transaction on open books."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskmq.policy.claim import UNPARTITIONED
from taskmq.policy.order import sort_key
from taskmq.queue import Limit, QueueConfig
from taskmq.state import TaskState
from taskmq.transport.sql.book import Book, open_books
from taskmq.transport.sql.codes import CANCELLED, COUNT_DEAD, COUNT_READY, FAILED, KEY_WITH_TTL, RUNNING
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.leases import drop
from taskmq.transport.sql.retention import forget
from taskmq.transport.sql.rows import DeadLetter, FlowRow, KeyRow, Place


def cancel(session: Session, task_ids: Sequence[str], now: int) -> dict[str, TaskState]:
    """Cancel what waits, ask what runs to stop; what became of those that had not ended."""
    states: dict[str, TaskState] = {}
    waiting = session.unfinished(task_ids)
    _lock(session, (queue for _, queue in waiting.values()))
    for task_id, (seq, queue) in waiting.items():
        with open_books(session, [queue], now) as books:
            task = next(iter(session.tasks_by_seq([seq])), None)
            if task is None:
                continue  # it has ended since
            if task.state == RUNNING:
                session.request_cancel(seq)
                states[task_id] = TaskState.RUNNING
            else:
                drop(session, books[queue], [task], CANCELLED, now)
                states[task_id] = TaskState.CANCELLED
    return states


def replay(session: Session, task_ids: Sequence[str], queue: str | None, now: int) -> list[bool]:
    """Queue these dead letters again, into ``queue`` or their own; False for what is not dead."""
    own = session.dead_queues(task_ids)
    _lock(session, own if queue is None or not own else {*own, queue})  # nothing dead makes no new queue
    return [_replay(session, task_id, queue, now) for task_id in task_ids]


def _replay(session: Session, task_id: str, queue: str | None, now: int) -> bool:
    dead = session.dead_letter(task_id)
    if dead is None or dead.state != FAILED:
        return False
    target = queue or dead.queue
    with open_books(session, [dead.queue, target], now) as books:
        lift_hold(books[dead.queue], dead.code, task_id)
        books[dead.queue].count(dead.handler_id, dead.priority, out=COUNT_DEAD)
        enter_again(session, books[target], task_id, dead, session.next_seqs(1)[0], now)
        if target != dead.queue and dead.idem_key is not None and dead.key_mode != KEY_WITH_TTL:
            session.free_keys([(dead.queue_id, dead.idem_key, task_id)])
        take_key(session, books[target], task_id, dead, now)
    return True


def enter_again(session: Session, book: Book, task_id: str, dead: DeadLetter, seq: int, available_at: int) -> None:
    """Out of the history and into its line, with a new budget."""
    if dead.code is not None:
        book.load_codes([dead.code])
    flow = book.flow(dead.code or UNPARTITIONED, seq)
    limit = None if dead.limit_key is None else Limit(dead.limit_key, dead.limit_n or 1)
    handler_id = book.handler(dead.handler, dead.version, limit is not None)
    key = (*sort_key(book.row.aging_us, dead.priority, available_at, seq), handler_id)
    book.count(handler_id, dead.priority, into=COUNT_READY)
    state = book.enter(flow, key, dead.pweight, dead.pmax, limit)
    session.revive(task_id, seq, book.row, Place(book.lane_of(flow, handler_id), state, handler_id), available_at)


def take_key(session: Session, book: Book, task_id: str, dead: DeadLetter, now: int) -> None:
    """One key, one task: the revived one has its key again, unless another task has taken it meanwhile."""
    if dead.idem_key is None or dead.key_mode == KEY_WITH_TTL:
        return
    at = (book.row.queue_id, dead.idem_key)
    taken = [row for row in session.find_keys([at]) if row.expires_at is None or row.expires_at > now]
    if not taken:
        session.write_keys([KeyRow(*at, task_id, dead.digest or "", None)])


def lift_hold(book: Book, code: str | None, task_id: str) -> None:
    """A partition that this dead task stopped goes on."""
    flow = None if code is None else _flow(book, code)
    if flow is not None and flow.held_by == task_id:
        flow.held_by, flow.dirty = None, True
        book.place(flow)


def change_queue(session: Session, queue: str, changes: Mapping[str, Any]) -> QueueConfig:
    """Change these fields of a queue's settings, and no others."""
    (row,) = session.lock_queues([queue])
    stored = session.queue_configs([queue]).get(queue) or QueueConfig()
    config = replace(stored, **{"paused": bool(row.paused), **changes})
    session.configure(row.queue_id, config)
    return config


def purge(session: Session, task_ids: Sequence[str], now: int) -> int:
    """Delete ended tasks' records; a partition that one of them stopped goes on."""
    held = session.held_queues(task_ids)
    if held:
        with open_books(session, {queue for queue, _ in held.values()}, now) as books:
            for task_id, (queue, code) in held.items():
                lift_hold(books[queue], code, task_id)
    records = session.take_records(task_ids)
    forget(session, records)
    return len(records)


def pause_partition(session: Session, queue: str, code: str, paused: bool, now: int) -> None:
    """Stop or resume claims from a partition, whether it has tasks now or not."""
    with open_books(session, [queue], now) as books:
        book = books[queue]
        flow = _flow(book, code)
        if flow is None and paused:
            flow = book.flow(code, session.spare_flow_id())
        if flow is not None:
            flow.paused, flow.dirty = int(paused), True
            book.place(flow)


def release_partition(session: Session, queue: str, code: str, now: int) -> bool:
    """Try the dead head of a held partition again, in its place."""
    with open_books(session, [queue], now) as books:
        book = books[queue]
        flow = _flow(book, code)
        if flow is None or flow.held_by is None:
            return False
        dead = session.dead_letter(flow.held_by)
        task_id, flow.held_by, flow.dirty = flow.held_by, None, True
        if dead is not None:
            book.count(dead.handler_id, dead.priority, out=COUNT_DEAD)
            enter_again(session, book, task_id, dead, dead.seq, dead.available_at)
            take_key(session, book, task_id, dead, now)
        else:
            book.place(flow)
    return True


def skip_head(session: Session, queue: str, code: str, now: int) -> bool:
    """Let an ordered partition go on without its head."""
    with open_books(session, [queue], now) as books:
        book = books[queue]
        flow = _flow(book, code)
        heads = [] if flow is None else [key for key in (flow.head, flow.parked) if key is not None]
        if flow is None or flow.n_run or not (flow.held_by or heads):
            return False
        if flow.held_by is None:
            flow.blocked_until = flow.blocked_seq = None
            head = session.tasks_by_seq([min(heads)[2]])
            drop(session, book, head, FAILED, now, reason="skipped", error="an operator skipped it")
        flow.held_by, flow.dirty = None, True
        book.place(flow)
    return True


def _lock(session: Session, queues: Iterable[str]) -> None:
    """Lock all queues that a verb will open one by one, so that locks are taken in one order."""
    names = sorted(set(queues))
    if session.shared and names:
        session.lock_queues(names)


def _flow(book: Book, code: str) -> FlowRow | None:
    """The partition, if it is there."""
    book.load_codes([code])
    flow = book.by_code.get(code)
    return None if flow is None or flow.gone else flow
