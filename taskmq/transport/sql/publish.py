"""Publish: all messages of a batch in one transaction, the check of their keys included.

In general that takes the lock of each queue: a task may make a partition eligible, meet a bound, take a key. A plain
task changes nothing but its own row and a count. Where transactions run side by side it is published without the lock,
when nothing else would have happened under it: see ``_is_plain``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from taskmq.errors import IdempotencyConflict
from taskmq.message import Message
from taskmq.policy.claim import UNPARTITIONED
from taskmq.policy.order import sort_key
from taskmq.transport.base import Receipt
from taskmq.transport.settings import check_room
from taskmq.transport.sql.book import Book, known_handlers, open_books
from taskmq.transport.sql.codes import (
    COUNT_READY,
    COUNT_SCHEDULED,
    DUE,
    KEY_UNTIL_END,
    KEY_WITH_RECORD,
    KEY_WITH_TTL,
    READY,
)
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.rows import CountRow, KeyRow, NewTask, Place, PlainTask, QueueRow
from taskmq.transport.sql.ways import Unlocked


def publish(session: Session, messages: Sequence[Message], now: int) -> list[Receipt]:
    """Store the messages, all or none."""
    if session.unlocked is not None and not any(map(_needs_lock, messages)):
        receipts = _publish_unlocked(session.unlocked, messages, now)
        if receipts is not None:
            return receipts
    with open_books(session, (message.queue for message in messages), now) as queues:
        accepted, receipts = _check(session, messages, queues, now)
        _check_room(queues, accepted)
        _load_flows(queues, accepted)
        seqs = session.next_seqs(len(accepted))
        session.insert_tasks(
            [_accept(queues[message.queue], message, seq, now) for seq, message in zip(seqs, accepted, strict=True)]
        )
    return receipts


def _needs_lock(message: Message) -> bool:
    """Whether a message changes more than its own row, whatever its queue is like."""
    return (
        message.key is not None
        or message.limit is not None
        or (message.partition is not None and message.run_after is None)
    )


def _is_plain(row: QueueRow, now: int) -> bool:
    """Whether a plain task may enter the queue without its lock.

    It is bounded by nothing; the unpartitioned flow, if that counts at all, has joined; and nothing is due that would
    have entered or joined before it.
    """
    return (
        row.max_queued is None
        and (row.flows == 0 or bool(row.ulive))
        and (row.due_at is None or row.due_at > now)
        and (row.unblock_at is None or row.unblock_at > now)
    )


def plain_tasks(messages: Sequence[Message], now: int) -> list[PlainTask] | None:
    """The messages as plain tasks; None if one of them is none, or comes twice."""
    if any(map(_needs_lock, messages)) or len({message.id for message in messages}) < len(messages):
        return None
    return [_plain_task(message, now) for message in messages]


def _plain_task(message: Message, now: int) -> PlainTask:
    partition = message.partition
    deadline = message.deadline.at(now) if message.deadline else None
    return PlainTask(
        message.id,
        message.queue,
        message.handler,
        message.version or "",
        message.priority,
        max(now, message.run_after.at(now)) if message.run_after else now,
        message.max_attempts,
        message.body.decode(),
        partition.code if partition else None,
        partition.weight if partition else None,
        partition.max_running if partition else None,
        _earlier(message.expires.at(now) if message.expires else None, deadline),
        deadline,
        message.retention,
        msgspec.json.encode(message.tags).decode() if message.tags else None,
    )


def _publish_unlocked(session: Unlocked, messages: Sequence[Message], now: int) -> list[Receipt] | None:
    """Add plain tasks; None, and nothing stored, when the lock is needed after all."""
    ids = [message.id for message in messages]
    names = {message.queue for message in messages}
    rows, known = session.look_at_queues(sorted(names), ids)
    if known or len(set(ids)) < len(ids) or len(rows) < len(names) or not all(_is_plain(row, now) for row in rows):
        return None
    queues = {row.name: (row, known_handlers(row.handlers)) for row in rows}
    tasks, counts = [], Counter[tuple[int, int, int]]()
    for message in messages:
        row, handlers = queues[message.queue]
        handler_id = handlers.get((message.handler, message.version or "", False))
        available_at = max(now, message.run_after.at(now)) if message.run_after else now
        if handler_id is None or (message.partition is not None and available_at <= now):
            return None
        ready = available_at <= now
        place = Place(-handler_id, READY, handler_id) if ready else Place(None, DUE, handler_id)
        tasks.append(_new_task(row, message, 0, place, available_at, now))
        counts[handler_id, COUNT_READY if ready else COUNT_SCHEDULED, message.priority] += 1
    session.append_tasks(tasks)
    session.add_deltas([CountRow(*at, more) for at, more in sorted(counts.items())])
    return [Receipt(task_id, duplicate=False) for task_id in ids]


def _check_room(queues: dict[str, Book], messages: Sequence[Message]) -> None:
    """Raise QueueFull where a queue's waiting tasks would be more than its ``max_queued``."""
    if any(book.row.max_queued is not None for book in queues.values()):
        for name, more in Counter(message.queue for message in messages).items():
            check_room(name, queues[name].row.max_queued, queues[name].row.queued, more)


def _load_flows(queues: dict[str, Book], messages: Sequence[Message]) -> None:
    codes: dict[str, set[str]] = {}
    for message in messages:
        if message.partition is not None:
            codes.setdefault(message.queue, set()).add(message.partition.code)
    for name, wanted in codes.items():
        queues[name].load_codes(sorted(wanted))
    limits = [message.limit for message in messages if message.limit is not None]
    for book in queues.values() if limits else ():
        book.limits.load(limits)


def _accept(book: Book, message: Message, seq: int, now: int) -> NewTask:
    row, partition = book.row, message.partition
    code = partition.code if partition else UNPARTITIONED
    weight = partition.weight if partition else None
    available_at = max(now, message.run_after.at(now)) if message.run_after else now
    handler_id = book.handler(message.handler, message.version, message.limit is not None)
    lane, state, kind = None, DUE, COUNT_SCHEDULED
    if available_at <= now:
        flow = book.flow(code, seq)
        key = (*sort_key(row.aging_us, message.priority, available_at, seq), handler_id)
        lane, kind = book.lane_of(flow, handler_id), COUNT_READY
        state = book.enter(flow, key, weight, partition.max_running if partition else None, message.limit)
    book.count(handler_id, message.priority, into=kind)
    return _new_task(row, message, seq, Place(lane, state, handler_id), available_at, now)


def _new_task(row: QueueRow, message: Message, seq: int, place: Place, available_at: int, now: int) -> NewTask:
    partition = message.partition
    deadline = message.deadline.at(now) if message.deadline else None
    expires = message.expires.at(now) if message.expires else None
    return NewTask(
        seq,
        message.id,
        row.queue_id,
        place.state,
        place.lane,
        message.priority,
        row.aging_us,
        available_at,
        message.max_attempts,
        now,
        message.handler,
        place.handler_id,
        message.body.decode(),
        partition.code if partition else None,
        partition.weight if partition else None,
        partition.max_running if partition else None,
        message.version or None,
        message.limit.key if message.limit else None,
        message.limit.n if message.limit else None,
        available_at if place.lane is None else None,
        _earlier(expires, deadline),
        deadline,
        message.retention,
        message.key,
        _key_mode(message),
        None if message.key is None else message.digest(),
        msgspec.json.encode(message.tags).decode() if message.tags else None,
    )


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _key_mode(message: Message) -> int:
    if message.key is None or message.key_ttl is not None:
        return KEY_WITH_TTL if message.key is not None else KEY_WITH_RECORD
    return KEY_UNTIL_END if message.key_until == "finished" else KEY_WITH_RECORD


def _check(
    session: Session, messages: Sequence[Message], queues: dict[str, Book], now: int
) -> tuple[list[Message], list[Receipt]]:
    """Which messages are new: by their ids, for a publish may be sent again, and by their keys.

    Nothing is stored before the whole batch has passed.
    """
    ids = [message.id for message in messages]
    known = session.known_ids(ids)
    keyed = [message for message in messages if message.key is not None]
    if not keyed and not known and len(set(ids)) == len(ids):
        return list(messages), [Receipt(message.id, duplicate=False) for message in messages]
    holders = _stored_keys(session, keyed, queues, now)
    accepted: list[Message] = []
    receipts: list[Receipt] = []
    new_keys = []
    for message in messages:
        if message.id in known:
            receipts.append(Receipt(message.id, duplicate=True))
            continue
        at = (queues[message.queue].row.queue_id, message.key or "")
        holder = holders.get(at) if message.key is not None else None
        if holder is not None:
            receipts.append(_duplicate(message, *holder))
            continue
        known.add(message.id)
        accepted.append(message)
        receipts.append(Receipt(message.id, duplicate=False))
        if message.key is not None:
            holders[at] = (message.id, message.digest())
            new_keys.append(KeyRow(*at, *holders[at], now + message.key_ttl if message.key_ttl is not None else None))
    session.write_keys(new_keys)
    return accepted, receipts


def _stored_keys(
    session: Session, keyed: Sequence[Message], queues: dict[str, Book], now: int
) -> dict[tuple[int, str], tuple[str, str]]:
    wanted = sorted({(queues[message.queue].row.queue_id, message.key or "") for message in keyed})
    found = session.find_keys(wanted)
    return {
        (row.queue_id, row.idem_key): (row.task_id, row.digest)
        for row in found
        if row.expires_at is None or row.expires_at > now
    }


def _duplicate(message: Message, task_id: str, digest: str) -> Receipt:
    if digest != message.digest():
        raise IdempotencyConflict(
            f"key {message.key!r} of queue {message.queue!r} is taken by task {task_id} with different content",
            key=message.key or "",
            task_id=task_id,
        )
    return Receipt(task_id, duplicate=True)
