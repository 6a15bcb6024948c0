"""The short way: publishes and successes of plain tasks, and a claim from one plain queue, in one exchange.

A plain task has no partition, no concurrency limit and no idempotency key; nobody waits for its end. So its publish is
one statement, which looks at its queue itself (publish.py says what for). Its success is one without the queue's lock:
it finds the task by its epoch, takes it away, and counts it as one that runs no more. A plain queue knows no partition,
limit or rate; alone in a claim, its line is the answer, and where nothing is due in it the claim is one statement
behind the lock of its row. The queue stays locked for no longer than the server needs, and fifty claimers of one queue
wait for each other's statements, not for each other's processes.

Exact all the same: the lock is a statement of its own, so what the next one reads is the truth (postgresql/session.py);
``max_running`` counts what runs by then; of one candidate ``served`` grows by what was taken, without a clamp. Whoever
takes tasks out of workers' hands – a reaper, a locked settle – locks their rows, so that a success that comes meanwhile
is either before it or too late.

What does not fit is left for the long way (settle.py, reserve.py), in a transaction that follows. A queue that has
refused again and again is not asked for a moment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from taskmq.message import DEFAULT_RETENTION_OK, Delivery, Message
from taskmq.outcome import Ack
from taskmq.transport.base import Reserve, Reserved, Settlement
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.publish import plain_tasks
from taskmq.transport.sql.reserve import delivery
from taskmq.transport.sql.rows import PlainClaim, PlainSuccess
from taskmq.transport.sql.ways import Promise

REFUSED = 0.25
"""Seconds before a queue is asked again that has refused twice within that time."""

Write = Callable[[Callable[[Session], Promise[bool]]], Promise[bool]]
"""``Engine.write``."""
Done = tuple[list[bool], Reserved | None]
"""Which settlements were carried out, and what was claimed; None: the claim is left for the long way."""


class ShortWay:
    """Decides what goes the short way, for one store."""

    def __init__(self) -> None:
        self._refused: dict[str, float] = {}
        """Until when not to ask; a queue's name stands for claims from it."""

    def publish(self, write: Write, messages: Sequence[Message], now: int) -> bool:
        """Store plain tasks; False, and nothing is stored, where that cannot be done."""
        asked = [f"publish {name}" for name in {message.queue for message in messages}]
        tasks = None if any(map(self._is_refused, asked)) else plain_tasks(messages, now)
        if tasks is None:
            return False

        def store(session: Session) -> Promise[bool]:
            assert session.short is not None
            return session.short.publish_plain(tasks, now)

        stored = write(store)()
        if not stored:
            self._refuse(asked)
        return stored

    def fits(self, items: Sequence[Settlement], claim: Reserve | None) -> bool:
        """Whether it is worth trying with all of this."""
        if claim is not None:
            any_task = claim.handlers is None and claim.keys and not claim.reservation
            if not any_task or len(claim.queues) != 1 or claim.limit < 1:
                return False
            if self._is_refused(claim.queues[0]):
                return False
        return all(_is_plain(item) for item in items)

    def go(self, session: Session, items: Sequence[Settlement], claim: Reserve | None, now: int) -> Promise[Done]:
        """Send all of it; the queue is locked before the tasks, as everywhere."""
        short = session.short
        assert short is not None
        if claim is not None:
            session.lock_later(claim.queues)
        queues = {item.delivery.queue for item in items}
        acked = short.succeed_plain([_success(item, now) for item in items], queues, now, DEFAULT_RETENTION_OK)
        claimed = None if claim is None else short.claim_plain(claim, random.getrandbits(62), now)

        def done() -> Done:
            gone = acked()
            ended = []
            for item in items:
                ended.append(item.delivery.token in gone)
                gone.discard(item.delivery.token)  # only once
            if claim is None or claimed is None:
                return ended, Reserved(deliveries=[])
            return ended, self._reserved(claim, claimed(), now)

        return done

    def _is_refused(self, what: str) -> bool:
        return bool(self._refused) and self._refused.get(what, 0.0) > time.monotonic()

    def _refuse(self, what: Sequence[str]) -> None:
        """Note a refusal; one alone may be a queue's first task, or something that was due just then."""
        now = time.monotonic()
        noted = {asked: end for asked, end in self._refused.items() if end > now - REFUSED}
        for asked in what:
            noted[asked] = now + REFUSED if asked in noted else now
        self._refused = noted

    def _reserved(self, claim: Reserve, claimed: PlainClaim | None, now: int) -> Reserved | None:
        name = claim.queues[0]
        if claimed is None:
            self._refuse([name])
            return None
        lease = claimed.lease_us or claim.lease
        deliveries = [delivery(task, name, bool(claimed.aging_us), now + lease, lease) for task in claimed.tasks]
        if len(deliveries) == claim.limit:
            return Reserved(deliveries=deliveries)
        ends = [claimed.due_at, claimed.lease_end, now + lease if deliveries else None]
        return Reserved(deliveries=deliveries, next_due=min((end for end in ends if end is not None), default=None))


def _is_plain(item: Settlement) -> bool:
    task: Delivery = item.delivery
    return (
        isinstance(item.outcome, Ack) and task.partition is None and task.limit_key is None and task.token is not None
    )


def _success(item: Settlement, now: int) -> PlainSuccess:
    assert isinstance(item.outcome, Ack)
    result = item.outcome.result
    return PlainSuccess(
        item.delivery.token,
        None if item.started_ago is None else now - item.started_ago,
        None if result is None else result.decode(),
        item.delivery.id,
        item.delivery.epoch,
    )


__all__ = ["ShortWay"]
