"""Reserve: lock the queues, read heads, decide with the pure policy, write. One transaction.

Optimistic claiming – decide without the lock, repair afterwards – was measured and lost: everybody decides for the
same heads, and a decision for n is worthless when its first flow is gone (13 picks lost for each won, and the bound
of fairness broken). So the queues' rows are locked in id order, and what is read after that is the truth.

Flows and lines are read lazily, a page at a time, as far as the decision depends on them. A queue that stands alone
and knows no partition needs no decision: its line is the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from taskmq.message import Delivery
from taskmq.policy import claim
from taskmq.policy.order import Key
from taskmq.transport.base import Reserve, Reserved
from taskmq.transport.sql import leases
from taskmq.transport.sql.book import Book
from taskmq.transport.sql.codes import BATCH
from taskmq.transport.sql.dialect import FlowRow, QueueRow, Session

CLAIMED = (
    *("seq", "id", "queue_id", "handler", "priority", "attempts", "max_attempts", "epoch", "code"),
    *("expires_at", "deadline_at", "created_at", "body"),
)


def reserve(session: Session, params: Reserve, opened: dict[str, Book], now: int) -> Reserved:
    """Claim the next tasks of queues whose books are open; first reaps and expires a batch each."""
    books = [opened[name] for name in dict.fromkeys(params.queues)]
    more = False
    for book in books:
        if book.row.lease_end is not None and book.row.lease_end <= now:
            more |= leases.reap(session, book, now, BATCH) >= BATCH
        late = book.row.expire_at is not None and book.row.expire_at <= now
        if late and leases.expire(session, book, now, BATCH) >= BATCH:
            return Reserved(deliveries=[], more=True)
    candidates = [_candidate(session, book, params.limit) for book in books if not book.row.paused]
    prefetch = partial(_prefetch_followers, session)
    picks = claim.choose(candidates, params.limit, prefetch)
    _read_next_heads(session, picks)
    deliveries = _mark(session, picks, params, now)
    for candidate in candidates:
        _write_back(candidate)
    next_due = None
    if len(picks) < params.limit:
        for book in books:
            book.flush()  # what was freed is not due any more
        next_due = session.next_due([book.row.queue_id for book in books])
    return Reserved(deliveries=deliveries, more=more, next_due=next_due)


# ── what the policy sees ──


def _candidate(session: Session, book: Book, limit: int) -> claim.Queue:
    row = book.row
    room = None if row.max_running is None else max(0, row.max_running - row.running)
    read = _flow_reader(session, book) if book.partitioned else None
    page = limit if room is None else min(limit, room)
    return claim.Queue(
        row.name,
        flows=read(page) if read else [],
        read=read,
        plain=_plain_flow(session, book, page),
        weight=row.weight,
        served=row.served,
        v=row.v,
        aging=bool(row.aging_us),
        turns=book.partitioned and not row.aging_us,
        room=room,
        ref=book,
    )


def _flow_reader(session: Session, book: Book) -> Callable[[int], list[claim.Flow]]:
    """Reads eligible flows in turn order. What this transaction has changed already is on the rows: flushed first."""
    book.flush_flows()
    offset = 0

    def read(k: int) -> list[claim.Flow]:
        nonlocal offset
        rows = session.flows_in_turn(book.row.queue_id, offset, k)
        offset += len(rows)
        return [_claim_flow(session, book.keep(row)) for row in rows]

    return read


def _claim_flow(session: Session, row: FlowRow) -> claim.Flow:
    assert row.head is not None
    keys: list[Key] = [row.head]
    read = partial(_read_line, session, row.flow_id, keys)
    return claim.Flow(row.code, keys=keys, read=read, tag=row.tag, weight=row.weight, ordered=row.ordered, ref=row)


def _plain_flow(session: Session, book: Book, page: int) -> claim.Flow | None:
    if book.partitioned and not book.plain.live:
        return None
    keys = session.line(book.plain.flow_id, 0, page)
    read = partial(_read_line, session, book.plain.flow_id, keys)
    return claim.Flow(claim.UNPARTITIONED, keys=keys, read=read, tag=book.plain.tag, ref=book.plain)


def _read_line(session: Session, lane: int, keys: list[Key], k: int) -> list[Key]:
    return session.line(lane, len(keys), k)


def _prefetch_followers(session: Session, flows: Sequence[tuple[claim.Queue, claim.Flow]], k: int) -> None:
    short = [flow for _, flow in flows if flow.read is not None and len(flow.keys) == flow.taken]
    if len(short) < 2:
        return
    heads = session.heads([flow.ref.flow_id for flow in short], 1, k)
    for flow in short:
        if len(flow.keys) == 1:
            flow.keys += heads.get(flow.ref.flow_id, [])
            if len(flow.keys) <= k:
                flow.read = None


# ── what the claim leaves ──


def _read_next_heads(session: Session, picks: Sequence[claim.Pick]) -> None:
    """Before the lines change, read the head that each parallel flow will have; flows of one depth in one exchange."""
    by_depth: dict[int, dict[int, claim.Flow]] = {}
    for queue, flow, _ in picks:
        if queue.ref.partitioned and not flow.ordered and flow.read is not None and flow.taken == len(flow.keys):
            by_depth.setdefault(flow.taken, {})[flow.ref.flow_id] = flow
    for depth, flows in by_depth.items():
        heads = session.heads(list(flows), depth, 1)
        for lane, flow in flows.items():
            flow.keys += heads.get(lane, [])
            flow.read = None


def _mark(session: Session, picks: Sequence[claim.Pick], params: Reserve, now: int) -> list[Delivery]:
    """Mark the picks as running, one statement for each length of lease, and make deliveries in pick order."""
    batch = random.getrandbits(62)
    marks: dict[int, list[tuple[int, int | None]]] = {}
    for queue, flow, key in picks:
        run = flow.ref.flow_id if flow.ordered and flow.taken > 1 else None
        marks.setdefault(queue.ref.row.lease_us or params.lease, []).append((key[2], run))
    rows = {queue.ref.row.queue_id: queue.ref.row for queue, _, _ in picks}
    made: dict[int, Delivery] = {}
    for lease, seqs in marks.items():
        for task in session.claim(seqs, params.worker, now + lease, batch):
            made[task[0]] = _delivery(task, rows[task[2]], now + lease, lease)
    return [made[key[2]] for _, _, key in picks]


def _delivery(task: Sequence[Any], row: QueueRow, until: int, lease: int) -> Delivery:
    seq, task_id, _, handler, priority, attempts, budget, epoch, code, expires_at, deadline_at, created_at, body = task
    return Delivery(
        id=task_id,
        queue=row.name,
        handler=handler,
        body=body.encode(),
        priority=priority,
        attempt=attempts + 1,
        max_attempts=budget,
        epoch=epoch,
        lease_until=until,
        lease=lease,
        partition=code,
        aging=row.aging_us > 0,
        expires_at=expires_at,
        deadline_at=deadline_at,
        created_at=created_at,
        token=seq,
    )


def _write_back(candidate: claim.Queue) -> None:
    """Store what the claim left: service, virtual time, and the standing of the flows that gave tasks."""
    if not candidate.taken:
        return
    book: Book = candidate.ref
    row = book.row
    row.served, row.v, row.dirty = candidate.served, candidate.v, True
    if row.max_running is not None:
        row.running += candidate.taken
    plain = candidate.plain
    if plain is not None and plain.taken and book.partitioned:
        book.plain.tag, book.plain.dirty = plain.tag, True
        book.plain.head = plain.head()
        book.place(book.plain)
    for view in candidate.flows:
        if view.taken:
            flow: FlowRow = view.ref
            flow.tag, flow.dirty = view.tag, True
            flow.n_run += view.taken
            flow.head = None if flow.ordered else view.head()
            book.place(flow)
