"""Bookkeeping of one queue inside one transaction: what entered, what left, who joined, what must be written.

All changes to flows go through here – publish, claim, settle, promotion, reaping, cancel, expiry. The head that a
flow's row carries is a copy of its line's first key; it is kept true by these few moves and nowhere else, so a claim
can trust it. An ordered flow with a task in a worker's hands keeps no head: it is read anew when the last of them is
settled, so publishes behind a running head need not touch anything but their own row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from taskmq.policy import turns
from taskmq.policy.claim import UNPARTITIONED
from taskmq.policy.order import Key
from taskmq.transport.sql.codes import BATCH
from taskmq.transport.sql.dialect import FlowRow, QueueRow, Session

_SOME_HEAD: Key = (0, 0, 0)
"""Stands for "the unpartitioned line is not empty"; its real head is read by the claim alone."""


@contextmanager
def open_books(session: Session, names: Iterable[str], now: int, limit: int = BATCH) -> Iterator[dict[str, Book]]:
    """Lock these queues and promote up to ``limit`` of what is due in each; at the end, write what changed."""
    books = {row.name: Book(session, row) for row in session.lock_queues(sorted(set(names)))}
    for book in books.values():
        book.promoted = book.promote(now, limit)
    yield books
    for book in books.values():
        book.flush()


class Book:
    """One queue and those of its flows that this transaction has seen."""

    def __init__(self, session: Session, row: QueueRow) -> None:
        self.session = session
        self.row = row
        self.by_code: dict[str, FlowRow] = {}
        self.by_id: dict[int, FlowRow] = {}
        self.plain = plain = FlowRow(-row.queue_id, UNPARTITIONED)
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
                waiting = self._plain_entered or bool(self.session.line(self.plain.flow_id, 0, 1))
                self.plain.live, self.plain.head = int(waiting), _SOME_HEAD if waiting else None
                self.plain.dirty = True
            flow = FlowRow(seq, code)
            flow.new = True
            self._keep([flow])
            self.row.flows += 1
            self.row.dirty = True
        return flow

    def enter(self, flow: FlowRow, key: Key, weight: int | None = None) -> None:
        """A task becomes claimable in this flow's line."""
        if flow is self.plain and not self.partitioned:
            self._plain_entered = True
            return
        if weight is not None and weight != flow.weight:
            flow.weight, flow.dirty = weight, True
        self.stand(flow, key)
        self.place(flow)

    def stand(self, flow: FlowRow, key: Key) -> None:
        """A task stands in line; no change to the flow's standing yet."""
        if flow.head is None or key < flow.head:
            flow.head, flow.dirty = key, True

    def place(self, flow: FlowRow) -> None:
        """Bring a flow's standing up to date after any change: joined, out, or forgotten."""
        if flow is self.plain and not self.partitioned:
            return
        eligible = int(flow.eligible())
        if eligible and not flow.live and not self.row.aging_us:
            turns.join(self.row, flow)
            self.row.dirty = flow.dirty = True
        if eligible != flow.live:
            flow.live, flow.dirty = eligible, True
        if flow is not self.plain and not eligible and not flow.gone and flow.empty():
            flow.gone = flow.dirty = True
            self.row.flows -= 1
            self.row.dirty = True

    def reread_heads(self, flows: Sequence[FlowRow]) -> None:
        """Read the heads of these flows anew, after their first task left the line without being claimed."""
        partitions = [flow for flow in flows if flow is not self.plain or self.partitioned]
        heads = self.session.heads([flow.flow_id for flow in partitions], 0, 1)
        for flow in partitions:
            keys = heads.get(flow.flow_id)
            flow.head, flow.dirty = keys[0] if keys else None, True
            self.place(flow)

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
        """Write all that changed."""
        self.flush_flows()
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
        self.load_codes([task[3] for task in tasks if task[3] is not None])
        events: list[tuple[int, int, tuple[Any, ...] | FlowRow]] = [(task[0], task[1], task) for task in tasks]
        events += [(flow.blocked_until or 0, flow.blocked_seq or 0, flow) for flow in flows]
        events.sort(key=lambda event: event[:2])
        ready: list[tuple[int, int]] = []
        for _, seq, what in events[:limit]:
            if isinstance(what, FlowRow):
                what.blocked_until, what.blocked_seq, what.dirty = None, None, True
                self.place(what)
            else:
                ready.append((seq, self._due_task(what)))
        session.make_ready(ready)
        row.due_at = row.unblock_at = None
        return min(len(events), limit)

    def _due_task(self, task: tuple[Any, ...]) -> int:
        _, seq, lane, code, weight, s1, s2 = task
        flow = self.flow(code or UNPARTITIONED, seq)
        if lane is not None and flow is not self.plain:
            flow.n_wait, flow.dirty = flow.n_wait - 1, True
        self.enter(flow, (s1, s2, seq), weight)
        return flow.flow_id
