"""The SQL store: each verb is one short transaction around its body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import msgspec

from taskmq.clock import Clock
from taskmq.errors import IdempotencyConflict, OutcomeUnknown, QueueFull, TaskMQError, TransportError
from taskmq.message import Message
from taskmq.queue import QueueConfig
from taskmq.transport.base import (
    Extend,
    Maintain,
    Maintained,
    Publish,
    Receipt,
    Renewed,
    Reserve,
    Reserved,
    Settle,
    Settlement,
    Wait,
    WorkerInfo,
)
from taskmq.transport.group import Call, Group
from taskmq.transport.settings import config_drift
from taskmq.transport.sql import leases
from taskmq.transport.sql.book import open_books
from taskmq.transport.sql.engine import Engine, Session
from taskmq.transport.sql.inspect import SqlInspect
from taskmq.transport.sql.publish import publish
from taskmq.transport.sql.reserve import reserve
from taskmq.transport.sql.retention import delete_old
from taskmq.transport.sql.serving import SqlServing
from taskmq.transport.sql.settle import settle
from taskmq.transport.sql.short import ShortWay
from taskmq.transport.sql.ways import Promise


def _nothing() -> Reserved:
    return Reserved(deliveries=[])


class SqlTransport(SqlServing, SqlInspect):
    """A store in a SQL database."""

    limitations: Mapping[str, str] = {}

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        super().__init__(engine, clock)
        self._short = ShortWay()
        self._publishes: Group[Sequence[Message], list[Receipt]] = Group(self._publish_together)

    # ── the hot path ──

    def publish(self, params: Publish) -> list[Receipt]:
        """Store the messages, all or none."""
        messages = params.messages
        if not messages:
            return []
        receipts = self._publishes.call(messages)
        self._engine.signal({message.queue for message in messages})
        return receipts

    def _publish_together(self, calls: Sequence[Call[Sequence[Message], list[Receipt]]]) -> None:
        """Several publishes as one; if one of them is refused, each for itself."""
        try:
            receipts = iter(self._publish([message for call in calls for message in call.wish]))
            for call in calls:
                call.answer([next(receipts) for _ in call.wish])
        except (IdempotencyConflict, QueueFull):
            if len(calls) == 1:
                raise
            for call in calls:
                try:
                    call.answer(self._publish(call.wish))
                except TaskMQError as error:
                    call.error = error

    def _publish(self, messages: Sequence[Message]) -> list[Receipt]:
        def work(session: Session) -> list[Receipt]:
            return publish(session, messages, self._clock.now())

        try:
            if self._engine.short and self._short.publish(self._engine.write, messages, self._clock.now()):
                return [Receipt(message.id, duplicate=False) for message in messages]
            return self._engine.write(work)
        except OutcomeUnknown as unknown:  # what is stored already is known by its id
            try:
                receipts = self._engine.write(work)
            except TransportError:
                raise unknown from None
        own = {message.id for message in messages}
        return [Receipt(receipt.id, receipt.duplicate and receipt.id not in own) for receipt in receipts]

    def publish_within(self, params: Publish, connection: Any) -> list[Receipt]:
        """Store the messages in a transaction of the user's."""
        messages = params.messages
        if not messages:
            return []
        queues = sorted({message.queue for message in messages})
        now = self._clock.now()
        return self._engine.within(connection, queues, lambda session: publish(session, messages, now))

    def reserve(self, params: Reserve) -> Reserved:
        """Claim the next tasks by the claim rule."""
        return self._both((), params)[1]

    def settle(self, params: Settle) -> list[bool]:
        """End deliveries, in order."""
        results = self._both(params.items, None)[0]
        self._engine.signal(_queues(params))
        return results

    def settle_and_reserve(self, settle: Settle, reserve: Reserve) -> tuple[list[bool], Reserved]:
        """Both in one transaction: one commit instead of two."""
        results, reserved = self._both(settle.items, reserve)
        if settle.items:
            queues = _queues(settle)
            self._engine.signal(queues if _leaves_some(settle, reserve, reserved, queues) else ())
        return results, reserved

    def _both(self, items: Sequence[Settlement], claim: Reserve | None) -> tuple[list[bool], Reserved]:
        """Settle, then reserve: the short way, and what does not fit into it the long way."""
        if claim is not None and not claim.queues:
            return self._both(items, None)[0] if items else [], Reserved(deliveries=[])
        if not self._engine.short or not self._short.fits(items, claim):
            results, reserved = self._engine.write(lambda session: self._exchange(session, items, claim))
            return results, reserved()
        done, got = self._engine.write(lambda session: self._short.go(session, items, claim, self._clock.now()))()
        if got is not None and all(done):
            return done, got
        left = [item for item, ended in zip(items, done, strict=True) if not ended]
        rest = claim if got is None else None
        results, reserved = self._engine.write(lambda session: self._exchange(session, left, rest))
        late = iter(results)
        return [ended or next(late) for ended in done], got or reserved()

    def _exchange(
        self, session: Session, items: Sequence[Settlement], claim: Reserve | None
    ) -> tuple[list[bool], Promise[Reserved]]:
        """Settle, then reserve, on books that are opened and written once."""
        now = self._clock.now()
        names = [item.delivery.queue for item in items]
        look = 0 if claim is None else claim.limit
        wanted = [*names, *(claim.queues if claim else ())]
        with open_books(session, wanted, now, look=look, seqs=[item.delivery.token or 0 for item in items]) as books:
            results = settle(session, items, books, now) if items else []
            reserved = _nothing if claim is None else reserve(session, claim, books, now)
        return results, reserved

    def extend(self, params: Extend) -> list[Renewed]:
        """Renew leases and mark started tasks."""
        return self._engine.write(lambda session: leases.extend(session, params.items, self._clock.now()), vital=True)

    # ── housekeeping ──

    def maintain(self, params: Maintain) -> Maintained:
        """One bounded round over all queues."""
        limit = params.limit or self._engine.batch
        promoted = reaped = 0
        more = False
        due = self._engine.read(lambda queries: queries.due(self._clock.now()))
        for queue in due.queues:
            done = self._engine.write(partial(leases.tidy_queue, queue=queue, now=self._clock.now(), limit=limit))
            promoted, reaped, more = promoted + done.promoted, reaped + done.reaped, more or done.more
        deleted = 0
        if due.records:
            deleted, left = self._engine.write(lambda session: delete_old(session, self._clock.now(), limit))
            more |= left
        if promoted or reaped:
            self._engine.signal()
        return Maintained(promoted=promoted, reaped=reaped, deleted=deleted, more=more)

    def wait(self, params: Wait) -> bool:
        """Block until a task of these queues can be claimed."""
        return self._engine.wait(params.queues, params.timeout, self._clock.now)

    def wake(self) -> None:
        """Make every blocked ``wait`` return now."""
        self._engine.wake()

    # ── named leases, workers, settings ──

    def lock(self, name: str, owner: str, ttl: int) -> bool:
        """Take or renew a named lease."""
        return self._engine.write(lambda session: session.take_lock(name, owner, self._clock.now(), ttl), vital=True)

    def unlock(self, name: str, owner: str) -> None:
        """Give a named lease back."""
        self._engine.write(lambda session: session.drop_lock(name, owner))

    def heartbeat(self, worker: WorkerInfo, ttl: int) -> None:
        """Write the worker's row."""
        now = self._clock.now()
        info = msgspec.json.encode(asdict(replace(worker, seen_at=now))).decode()
        self._engine.write(lambda session: session.write_worker(worker.id, info, now + ttl), vital=True)

    def forget(self, worker_id: str) -> None:
        """Remove a worker's row."""
        self._engine.write(lambda session: session.forget_worker(worker_id))

    def configure_queues(self, queues: Mapping[str, QueueConfig], overwrite: bool = False) -> dict[str, list[str]]:
        """Seed queues that were never configured; returns drift."""
        if not queues:
            return {}
        drift = self._engine.write(lambda session: self._configure(session, queues, overwrite))
        self._engine.signal()
        return drift

    def _configure(self, session: Session, queues: Mapping[str, QueueConfig], overwrite: bool) -> dict[str, list[str]]:
        drift: dict[str, list[str]] = {}
        rows = {row.name: row for row in session.lock_queues(list(queues))}
        stored = session.queue_configs(list(queues))
        for name, config in queues.items():
            known = stored.get(name)
            if known is None or overwrite:
                session.configure(rows[name].queue_id, config)
            elif differs := config_drift(config, known, bool(rows[name].paused)):
                drift[name] = differs
        return drift

    def close(self) -> None:
        """Close the database; a blocked ``wait`` returns."""
        self._engine.close()


def _leaves_some(settled: Settle, claim: Reserve, reserved: Reserved, queues: set[str]) -> bool:
    """Whether somebody else may find a task after these settlements, and a claim in the same transaction.

    A settlement lets one more task start at most: a partition's next, one in a freed slot, itself. So a claim that took
    as many, or all there were, has left nothing that was not there before.
    """
    took = len(reserved.deliveries)
    takes_all = claim.handlers is None and claim.keys and queues.issubset(claim.queues)
    return not takes_all or reserved.more or took == claim.limit < len(settled.items)


def _queues(settlements: Settle) -> set[str]:
    return {item.delivery.queue for item in settlements.items}
