"""Reserve: lock the queues, read heads, decide with the pure policy, write. One transaction.

Optimistic claiming – decide without the lock, repair afterwards – was measured and lost: everybody decides for the
same heads, and a decision for n is worthless when its first flow is gone (13 picks lost for each won, and the bound
of fairness broken). So the queues' rows are locked in id order, and what is read after that is the truth.

Flows and lines are read lazily, a page at a time, as far as the decision depends on them. A queue that stands alone
and knows no partition needs no decision: its line is the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import TypeVar

from taskmq.message import Delivery
from taskmq.policy import claim, rate
from taskmq.policy.limits import Parking
from taskmq.policy.order import Key, priority_of
from taskmq.transport.base import Reserve, Reserved
from taskmq.transport.sql import leases
from taskmq.transport.sql.book import Book
from taskmq.transport.sql.codes import COUNT_READY, COUNT_RUNNING, PARKED, reservation_of
from taskmq.transport.sql.configs import stored_rate
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.gate import SqlGate
from taskmq.transport.sql.rows import ClaimedTask, FlowRow, QueueRow
from taskmq.transport.sql.ways import Promise


def reserve(session: Session, params: Reserve, opened: dict[str, Book], now: int) -> Promise[Reserved]:
    """Claim the next tasks of queues whose books are open; first reaps and expires a batch each."""
    books = [opened[name] for name in dict.fromkeys(params.queues)]
    batch = session.batch
    more = any(book.promoted >= batch for book in books)
    for book in books:
        if book.row.lease_end is not None and book.row.lease_end <= now:
            more |= leases.reap(session, book, now, batch) >= batch
        late = book.row.expire_at is not None and book.row.expire_at <= now
        if late and leases.expire(session, book, now, batch) >= batch:
            return lambda: Reserved(deliveries=[], more=True)
    for book in books:
        book.look_for_missed()
    for book in books:
        more |= leases.return_parked(session, book, batch) >= batch
    parking = Parking()
    candidates = [
        _candidate(session, book, SqlGate(book, params, parking), params.limit, now)
        for book in books
        if not book.row.paused
    ]
    picks = claim.choose(candidates, params.limit, partial(_prefetch_followers, session))
    _read_next_heads(session, candidates)
    deliveries = _mark(session, picks, params, now)
    for candidate in candidates:
        _park(session, candidate)
        _write_back(session, candidate, now)
        candidate.ref.look_for_missed()
    more |= parking.over
    if len(picks) == params.limit:
        return lambda: Reserved(deliveries=deliveries(), more=more)
    for book in books:
        book.flush()  # what was freed is not due any more
    next_due = session.next_due([book.row.name for book in books], now)
    return lambda: Reserved(deliveries=deliveries(), more=more, next_due=next_due())


# ── what the policy sees ──


def _candidate(session: Session, book: Book, gate: SqlGate, limit: int, now: int) -> claim.Queue:
    row = book.row
    room = _room(row, now)
    page = limit if room is None else min(limit, room)
    read = _flow_reader(session, book, gate, page) if book.partitioned else None
    return claim.Queue(
        row.name,
        flows=read(page) if read else [],
        read=read,
        plain=_plain_flow(session, book, gate, page),
        weight=row.weight,
        served=row.served,
        v=row.v,
        aging=bool(row.aging_us),
        turns=book.partitioned and not row.aging_us,
        room=room,
        gate=gate if gate.needed() else None,
        ref=book,
    )


def _room(row: QueueRow, now: int) -> int | None:
    """How many of the queue's tasks may start now; None: any number."""
    rooms = []
    if row.max_running is not None:
        rooms.append(max(0, row.max_running - row.running))
    limit = stored_rate(row.rate)
    if limit is not None:
        rooms.append(rate.tokens(limit, rate.level_at(limit, row.level, row.level_at, now)))
    return min(rooms, default=None)


def _flow_reader(session: Session, book: Book, gate: SqlGate, page: int) -> Callable[[int], list[claim.Flow]]:
    """Reads eligible flows in turn order. What this transaction has changed already is on the rows: flushed first."""
    book.flush_flows()
    queue_id = book.row.queue_id
    if gate.handlers is None:
        rows = _pages(lambda offset, k: session.flows_in_turn(queue_id, offset, k), page)
    else:  # an index for each handler: what this claim cannot run is not walked
        by_handler = [_pages(partial(_flows_of, session, queue_id, handler), page) for handler in sorted(gate.handlers)]
        rows = merge(*by_handler, key=_aging_turn if book.row.aging_us else _turn)

    def read(k: int) -> list[claim.Flow]:
        return [_claim_flow(session, book.keep(row), gate) for row in islice(rows, k)]

    return read


def _flows_of(session: Session, queue_id: int, handler: int, offset: int, k: int) -> list[FlowRow]:
    return session.flows_in_turn(queue_id, offset, k, handler)


def _turn(flow: FlowRow) -> tuple[int, int, int, str]:
    return (flow.h1 or 0, flow.tag, 0, flow.code)


def _aging_turn(flow: FlowRow) -> tuple[int, int, int, str]:
    return (flow.h1 or 0, flow.h2 or 0, flow.hseq or 0, flow.code)


E = TypeVar("E")


def _pages(read: Callable[[int, int], list[E]], page: int, first: list[E] | None = None) -> Iterator[E]:
    """Everything that ``read(offset, k)`` gives, page by page, as far as anybody asks."""
    page = max(1, page)
    entries = read(0, page) if first is None else first
    offset = 0
    while entries:
        yield from entries
        if len(entries) < page:
            return
        offset += len(entries)
        page = max(page, offset)
        entries = read(offset, page)


def _claim_flow(session: Session, row: FlowRow, gate: SqlGate) -> claim.Flow:
    assert row.head is not None
    keys: list[Key] = [row.head]
    gate.pages.append(keys)
    parked = row.parked

    def read(k: int) -> list[Key]:
        more = session.line(row.flow_id, len(keys), k)
        # Nothing behind a parked task of an ordered partition may start.
        return more if parked is None else [key for key in more if key < parked]

    return claim.Flow(
        row.code,
        keys=keys,
        read=read,
        tag=row.tag,
        weight=row.weight,
        ordered=row.ordered,
        room=row.room(),
        ref=row,
    )


def _plain_flow(session: Session, book: Book, gate: SqlGate, page: int) -> claim.Flow | None:
    """The unpartitioned tasks: a line for each handler, read as one."""
    if book.partitioned and not book.plain.live and not book.find_stragglers():
        return None
    lanes, page = gate.lanes(), max(1, page)
    heads = {lanes[0]: session.line(lanes[0], 0, page)} if len(lanes) == 1 else session.heads(lanes, 0, page)
    lines = [_pages(partial(_line, session, lane), page, first) for lane, first in heads.items()]
    keys = lines[0] if len(lines) == 1 else merge(*lines)
    start = list(islice(keys, page))
    gate.pages.append(start)
    return claim.Flow(
        claim.UNPARTITIONED, keys=start, read=lambda k: list(islice(keys, k)), tag=book.plain.tag, ref=book.plain
    )


def _line(session: Session, lane: int, offset: int, k: int) -> list[Key]:
    return session.line(lane, offset, k)


def _prefetch_followers(session: Session, pairs: Sequence[tuple[claim.Queue, claim.Flow]], k: int) -> None:
    flows = [flow for _, flow in pairs if flow.read is not None and len(flow.keys) == flow.position]
    short = [flow for flow in flows if flow.ref.parked is None]
    if len(short) < 2:
        return
    heads = session.heads([flow.ref.flow_id for flow in short], 1, k)
    for flow in short:
        if len(flow.keys) == 1:
            flow.keys += heads.get(flow.ref.flow_id, [])
            if len(flow.keys) <= k:
                flow.read = None


# ── what the claim leaves ──


def _views(candidate: claim.Queue) -> list[claim.Flow]:
    """The flows that gave or parked a task."""
    flows = candidate.flows if candidate.plain is None else [candidate.plain, *candidate.flows]
    return [flow for flow in flows if flow.position]


def _read_next_heads(session: Session, candidates: Sequence[claim.Queue]) -> None:
    """Before the lines change, read the head that each flow will have; parallel flows of one depth in one exchange."""
    by_depth: dict[int, dict[int, claim.Flow]] = {}
    for candidate in candidates:
        for flow in _views(candidate) if candidate.ref.partitioned else ():
            if flow is candidate.plain:
                flow.head()
            elif not flow.ordered and flow.read is not None and flow.position == len(flow.keys):
                by_depth.setdefault(flow.position, {})[flow.ref.flow_id] = flow
    for depth, flows in by_depth.items():
        heads = session.heads(list(flows), depth, 1)
        for lane, flow in flows.items():
            flow.keys += heads.get(lane, [])
            flow.read = None


def _mark(session: Session, picks: Sequence[claim.Pick], params: Reserve, now: int) -> Promise[list[Delivery]]:
    """Mark the picks as running, one statement for each length of lease; gives deliveries in pick order."""
    batch = reservation_of(now) if params.reservation else random.getrandbits(62)
    marks: dict[int, list[tuple[int, int | None]]] = {}
    for queue, flow, key in picks:
        queue.ref.count(key[3], priority_of(key), out=COUNT_READY, into=COUNT_RUNNING)
        run = flow.ref.flow_id if flow.ordered and flow.taken > 1 else None
        marks.setdefault(params.lease if params.reservation else queue.ref.row.lease_us or params.lease, []).append(
            (key[2], run)
        )
    queues: dict[int, QueueRow] = {queue.ref.row.queue_id: queue.ref.row for queue, _, _ in picks}
    answers = [(session.claim(seqs, params.worker, now + lease, batch), lease) for lease, seqs in marks.items()]

    def deliveries() -> list[Delivery]:
        made: dict[int, Delivery] = {}
        for tasks, lease in answers:
            for task in tasks():
                row = queues[task.queue_id]
                made[task.seq] = delivery(task, row.name, bool(row.aging_us), now + lease, lease)
        return [made[key[2]] for _, _, key in picks]

    return deliveries


def delivery(task: ClaimedTask, queue: str, aging: bool, until: int, lease: int) -> Delivery:
    """What a worker gets of a claimed task."""
    return Delivery(
        id=task.id,
        queue=queue,
        handler=task.handler,
        body=task.body.encode(),
        priority=task.priority,
        attempt=task.attempts + 1,
        max_attempts=task.max_attempts,
        epoch=task.epoch,
        lease_until=until,
        lease=lease,
        partition=task.code,
        aging=aging,
        expires_at=task.expires_at,
        deadline_at=task.deadline_at,
        created_at=task.created_at,
        available_at=task.available_at,
        version=task.version or "",
        limit_key=task.limit_key,
        token=task.seq,
    )


def _park(session: Session, candidate: claim.Queue) -> None:
    """Tasks whose limit is full leave their lines, in the order in which they were found."""
    if candidate.parked:
        book, gate = candidate.ref, candidate.gate
        assert isinstance(gate, SqlGate)
        for view, key in candidate.parked:
            book.park(view.ref, gate.limit(key), key)
        session.move([key[2] for _, key in candidate.parked], PARKED)


def _write_back(session: Session, candidate: claim.Queue, now: int) -> None:
    """Store what the claim left: service, virtual time, and the standing of the flows that gave or parked tasks."""
    book: Book = candidate.ref
    row = book.row
    if candidate.taken:
        row.served, row.v, row.dirty = candidate.served, candidate.v, True
        row.running += candidate.taken
        _count_starts(row, candidate.taken, now)
    for view in _views(candidate):
        flow: FlowRow = view.ref
        if view is not candidate.plain:
            flow.tag, flow.dirty = view.tag, True
            flow.n_run += view.taken
            if flow.ordered:  # a parked head leaves the partition waiting with it, and the next one behind it
                flow.head = None if view.taken else _head_behind(session, flow)
            else:
                flow.head = view.head()
            book.place(flow)
        elif book.partitioned:
            flow.tag, flow.dirty = view.tag, True
            flow.head = view.head()
            if flow.head is None and isinstance(candidate.gate, SqlGate) and candidate.gate.handlers is not None:
                flow.head = next((keys[0] for keys in session.heads(book.lanes(), 0, 1).values() if keys), None)
            book.place(flow)


def _head_behind(session: Session, flow: FlowRow) -> Key | None:
    return next(iter(session.line(flow.flow_id, 0, 1)), None)


def _count_starts(row: QueueRow, started: int, now: int) -> None:
    """Take what these starts cost from the rate's bucket."""
    limit = stored_rate(row.rate)
    if limit is not None:
        row.level = rate.take(limit, rate.level_at(limit, row.level, row.level_at, now), started)
        row.level_at, row.open_at = now, rate.next_token_at(limit, row.level, now)
