"""Bookkeeping of one queue inside one transaction: what entered, what left, who joined, what must be written.

All changes to flows go through here – publish, claim, settle, promotion, reaping, cancel, expiry. The head that a
flow's row carries is a copy of its line's first key; it is kept true by these few moves and nowhere else, so a claim
can trust it. An ordered flow with a task in a worker's hands keeps no head: it is read anew when the last of them is
settled, so publishes behind a running head need not touch anything but their own row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import msgspec

from taskmq.policy import turns
from taskmq.policy.claim import UNPARTITIONED
from taskmq.policy.limits import LOOK
from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.sql.codes import COUNT_READY, COUNT_RETRYING, COUNT_SCHEDULED, PARKED, READY
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.limits import LimitBook
from taskmq.transport.sql.rows import CountRow, DueTask, Entry, FlowRow, QueueRow, TaskRow

_SOME_HEAD: Key = (0, 0, 0, 0)
"""Stands for "the unpartitioned line is not empty"; its real head is read by the claim alone."""


@contextmanager
def open_books(
    session: Session,
    names: Iterable[str],
    now: int,
    limit: int | None = None,
    look: int = 0,
    seqs: Sequence[int] = (),
) -> Iterator[dict[str, Book]]:
    """Lock these queues and promote up to ``limit`` (None: a batch) of what is due in each; at the end, write.

    ``look``: so many heads of their lines will be read; ``seqs``: tasks that will be settled.
    """
    limits = LimitBook(session)
    books = {row.name: Book(session, row, limits) for row in session.lock_queues(sorted(set(names)), look, seqs)}
    for book in books.values():
        book.promoted = book.promote(now, limit or session.batch)
    yield books
    for book in books.values():
        book.flush()
    limits.flush()


Handlers = dict[tuple[str, str, bool], int]
"""(name, version, keyed) → handler_id."""


@lru_cache(1024)
def known_handlers(text: str) -> Handlers:
    """The handlers of a queue's row."""
    return {(name, version, bool(keyed)): number for number, name, version, keyed in msgspec.json.decode(text)}


class Book:
    """One queue and those of its flows that this transaction has seen."""

    def __init__(self, session: Session, row: QueueRow, limits: LimitBook) -> None:
        self.session = session
        self.row = row
        self.limits = limits
        self._new_handlers: Handlers = {}
        self._counts: dict[tuple[int, int, int], int] = {}
        self._stopped: list[FlowRow] = []
        self.by_code: dict[str, FlowRow] = {}
        self.by_id: dict[int, FlowRow] = {}
        self.plain = plain = FlowRow(0, UNPARTITIONED)  # it has no row, and a lane for each handler
        plain.tag, plain.live = row.utag, row.ulive
        plain.head = _SOME_HEAD if plain.live else None
        self.promoted = 0
        self._plain_entered = False

    # ── loading ──

    def load_codes(self, codes: Sequence[str]) -> None:
        """Read the flows of these codes, as far as they exist and were not read yet."""
        self._keep(self.session.flows_by_code(self.row.queue_id, [c for c in codes if c not in self.by_code]))

    def load_ids(self, flow_ids: Sequence[int]) -> None:
        """Read the flows of these ids."""
        self._keep(self.session.flows_by_id([i for i in flow_ids if i > 0 and i not in self.by_id]))

    def keep(self, flow: FlowRow) -> FlowRow:
        """Take a flow that a statement brought, unless this book has it already."""
        self._keep([flow] if flow.flow_id not in self.by_id else [])
        return self.by_id[flow.flow_id]

    def _keep(self, flows: Sequence[FlowRow]) -> None:
        for flow in flows:
            self.by_id[flow.flow_id] = self.by_code[flow.code] = flow

    def lane(self, lane: int) -> FlowRow:
        """The loaded flow of a task's lane."""
        return self.by_id[lane] if lane > 0 else self.plain

    # ── handlers, counts ──

    @property
    def handlers(self) -> Handlers:
        """Every handler that this queue has seen."""
        known = known_handlers(self.row.handlers)
        return {**known, **self._new_handlers} if self._new_handlers else known

    def handler(self, name: str, version: str | None, keyed: bool) -> int:
        """The id of a handler in this queue, registered if it is new."""
        at = (name, version or "", keyed)
        number = known_handlers(self.row.handlers).get(at) or self._new_handlers.get(at)
        if number is None:
            number = self._new_handlers[at] = self.session.add_handler(self.row.queue_id, *at)
        return number

    def lanes(self) -> list[int]:
        """The lines of the unpartitioned tasks, one a handler."""
        return [-number for number in self.handlers.values()]

    def keyed(self) -> frozenset[int]:
        """The handlers whose tasks have a concurrency limit."""
        return frozenset(number for (_, _, keyed), number in self.handlers.items() if keyed)

    def count(self, handler_id: int, priority: int, *, out: int | None = None, into: int | None = None) -> None:
        """A task goes from one kind to another (codes.py); None: it is new, or gone."""
        counts = self._counts
        if out is not None:
            at = (handler_id, out, priority)
            counts[at] = counts.get(at, 0) - 1
        if into is not None:
            at = (handler_id, into, priority)
            counts[at] = counts.get(at, 0) + 1

    def lane_of(self, flow: FlowRow, handler_id: int) -> int:
        """The lane in which a task of this handler stands in this flow."""
        return -handler_id if flow is self.plain else flow.flow_id

    # ── moves ──

    @property
    def partitioned(self) -> bool:
        """Whether the queue knows partitions; until then nothing of turns is touched."""
        return self.row.flows > 0

    def flow(self, code: str, seq: int) -> FlowRow:
        """The flow of a (loaded) code, born of task ``seq`` if need be. The first one makes plain tasks a flow, too."""
        if code == UNPARTITIONED:
            return self.plain
        flow = self.by_code.get(code)
        if flow is None or flow.gone:
            if not self.partitioned:
                waiting = self._plain_entered or self.plain_waits()
                self.plain.live, self.plain.head = int(waiting), _SOME_HEAD if waiting else None
                self.plain.dirty = True
            flow = FlowRow(seq, code)
            flow.new = True
            self._keep([flow])
            self.row.flows += 1
            self.row.dirty = True
        return flow

    def find_stragglers(self) -> bool:
        """Let the unpartitioned flow join where tasks stand in its line although it has not (publish.py)."""
        if self.session.shared and not self.plain.live and self.plain_waits():
            self.plain.head = _SOME_HEAD
            self.place(self.plain)
        return bool(self.plain.live)

    def plain_waits(self) -> bool:
        """Whether any unpartitioned task stands in line, as the tables have it."""
        return any(self.session.heads(self.lanes(), 0, 1).values())

    def enter(
        self,
        flow: FlowRow,
        key: Key,
        weight: int | None = None,
        max_running: int | None = None,
        limit: Limit | None = None,
    ) -> int:
        """A task becomes claimable: READY in this flow's line, or PARKED because its limit's key is full."""
        if weight is not None and weight != flow.weight:
            flow.weight, flow.dirty = weight, True
        if max_running is not None and max_running != flow.max_running:
            flow.max_running, flow.dirty = max_running, True
        if limit is not None:
            self._see_limit()
            if not flow.ordered and self.limits.look(limit).free(limit.n) <= 0:
                self.park(flow, limit, key)
                self.place(flow)
                return PARKED
        if self.row.limited and flow.ordered and flow.live and flow.head is not None and key < flow.head:
            self._displaced(flow.head)
        self.stand(flow, key)
        self.place(flow)
        return READY

    def _see_limit(self) -> None:
        if not self.row.limited:
            self.row.limited, self.row.dirty = 1, True

    def _displaced(self, head: Key) -> None:
        """Something more urgent came before the head of an ordered partition: its slot is for others meanwhile."""
        if head[3] in self.keyed():
            for limit in self.session.limits_of([head[2]]).values():
                self.limits.change(limit).missed(head[3], limit.n)

    def stand(self, flow: FlowRow, key: Key) -> None:
        """A task stands in line; no change to the flow's standing yet."""
        if flow is self.plain and not self.partitioned:
            self._plain_entered = True
        elif flow.head is None or key < flow.head:
            flow.head, flow.dirty = key, True

    def park(self, flow: FlowRow, limit: Limit, key: Key) -> None:
        """A task waits outside the line for a slot; an ordered partition waits with it."""
        self.limits.park(limit, key, self.lane_of(flow, key[3]), None if self.row.aging_us else flow.weight)
        if flow is not self.plain:
            flow.n_wait, flow.dirty = flow.n_wait + 1, True
            if flow.ordered and (flow.parked is None or key < flow.parked):
                flow.parked = key

    def unpark(self, flow: FlowRow, limit: Limit, task: TaskRow) -> None:
        """It waits for a slot no more; its row says so already."""
        self.limits.unpark(limit, task)
        if flow is not self.plain:
            flow.n_wait, flow.dirty = flow.n_wait - 1, True
            if flow.ordered:
                flow.parked = self.session.first_parked(flow.flow_id)

    def place(self, flow: FlowRow) -> None:
        """Bring a flow's standing up to date after any change: joined, out, or forgotten."""
        if flow is self.plain and not self.partitioned:
            return
        eligible = int(flow.eligible())
        if eligible and not flow.live and not self.row.aging_us:
            turns.join(self.row, flow)
            self.row.dirty = flow.dirty = True
        if flow.live and not eligible and not (flow.ordered and flow.n_run):
            self._stopped.append(flow)
        if eligible != flow.live:
            flow.live, flow.dirty = eligible, True
        if flow is not self.plain and not eligible and not flow.gone and flow.empty():
            flow.gone = flow.dirty = True
            self.row.flows -= 1
            self.row.dirty = True

    def reread_heads(self, flows: Sequence[FlowRow]) -> None:
        """Read the heads of these flows anew, after their first task left the line without being claimed."""
        partitions = [flow for flow in flows if flow is not self.plain]
        heads = self.session.heads([flow.flow_id for flow in partitions], 0, 1)
        for flow in partitions:
            keys = heads.get(flow.flow_id)
            flow.head, flow.dirty = keys[0] if keys else None, True
            self.place(flow)
        if self.plain in flows and self.partitioned:
            self.plain.head, self.plain.dirty = _SOME_HEAD if self.plain_waits() else None, True
            self.place(self.plain)

    def look_for_missed(self) -> None:
        """At the end of a verb: flows that it stopped or filled cannot use the slots their first tasks stood for."""
        stopped, self._stopped = self._stopped, []
        for flow in stopped:
            if self.row.limited and not flow.live and flow is not self.plain:
                for handler_id, limit in self.session.limits_in_line(flow.flow_id, LOOK):
                    self.limits.change(limit).missed(handler_id, limit.n)

    def block(self, flow: FlowRow, until: int, seq: int) -> None:
        """Stop a flow until then; the later of two ends holds."""
        if flow.blocked_until is None or flow.blocked_until < until:
            flow.blocked_until, flow.blocked_seq, flow.dirty = until, seq, True

    def flush_flows(self) -> None:
        """Write the flows that changed, so that statements see them."""
        changed = [flow for flow in self.by_id.values() if flow.dirty and not (flow.new and flow.gone)]
        self.session.write_flows(self.row.queue_id, bool(self.row.aging_us), changed)
        for flow in changed:
            flow.new = flow.dirty = False

    def flush(self) -> None:
        """Write all that changed, but for the limits: they are shared by the books."""
        self.look_for_missed()
        self.flush_flows()
        if self._counts:
            self.session.add_counts([CountRow(*at, more) for at, more in sorted(self._counts.items()) if more])
            self._counts = {}
        if self.plain.dirty:
            self.row.utag, self.row.ulive, self.row.dirty = self.plain.tag, self.plain.live, True
            self.plain.dirty = False
        if self.row.dirty:
            self.session.write_queues([self.row])
            self.row.dirty = False

    # ── promotion ──

    def promote(self, now: int, limit: int) -> int:
        """Let what is due by now enter its line or free its flow, in order of due time, then seq."""
        row, session = self.row, self.session
        tasks = session.due_tasks(row.queue_id, now, limit) if row.due_at is not None and row.due_at <= now else []
        blocked = (
            session.flows_due(row.queue_id, now, limit) if row.unblock_at is not None and row.unblock_at <= now else []
        )
        if not tasks and not blocked:
            return 0
        flows = [self.keep(flow) for flow in blocked]
        self.load_codes([task.code for task in tasks if task.code is not None])
        limits = {task.seq: Limit(task.limit_key, task.limit_n or 1) for task in tasks if task.limit_key is not None}
        self.limits.load(limits.values())
        events: list[tuple[int, int, DueTask | FlowRow]] = [(task.due_at, task.seq, task) for task in tasks]
        events += [(flow.blocked_until or 0, flow.blocked_seq or 0, flow) for flow in flows]
        events.sort(key=lambda event: event[:2])
        ready: list[Entry] = []
        for _, seq, what in events[:limit]:
            if isinstance(what, FlowRow):
                what.blocked_until, what.blocked_seq, what.dirty = None, None, True
                self.place(what)
            else:
                ready.append(self._due_task(what, limits.get(seq)))
        session.make_ready(ready)
        row.due_at = row.unblock_at = None
        return min(len(events), limit)

    def _due_task(self, task: DueTask, limit: Limit | None) -> Entry:
        flow = self.flow(task.code or UNPARTITIONED, task.seq)
        if task.lane is not None and flow is not self.plain:
            flow.n_wait, flow.dirty = flow.n_wait - 1, True
        self.count(
            task.handler_id,
            task.priority,
            out=COUNT_SCHEDULED if task.lane is None else COUNT_RETRYING,
            into=COUNT_READY,
        )
        state = self.enter(flow, (task.s1, task.s2, task.seq, task.handler_id), task.pweight, task.pmax, limit)
        return Entry(task.seq, self.lane_of(flow, task.handler_id), state)
