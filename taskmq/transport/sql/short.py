"""The short way: successes of plain tasks, and a claim from one plain queue, in one exchange.

A plain task has no partition, no concurrency limit and no idempotency key; nobody waits for its end. So its success is
one statement without the queue's lock: it finds the task by its epoch, takes it away, and counts it as one that runs no
more. A plain queue knows no partition, limit or rate; alone in a claim, its line is the answer, and where nothing is
due in it the claim is one statement behind the lock of its row. The queue stays locked for no longer than the server
needs, and fifty claimers of one queue wait for each other's statements, not for each other's processes.

Exact all the same: the lock is a statement of its own, so what the next one reads is the truth (postgresql/session.py);
``max_running`` counts what runs by then; of one candidate ``served`` grows by what was taken, without a clamp. Whoever
takes tasks out of workers' hands – a reaper, a locked settle – locks their rows, so that a success that comes meanwhile
is either before it or too late.

What does not fit is left for the long way (settle.py, reserve.py), in a transaction that follows. A queue that has
refused is not asked again for a moment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from taskmq.message import DEFAULT_RETENTION_OK, Delivery
from taskmq.outcome import Ack
from taskmq.transport.base import Reserve, Reserved, Settlement
from taskmq.transport.sql.engine import Promise, Session
from taskmq.transport.sql.reserve import delivery
from taskmq.transport.sql.rows import PlainClaim, PlainSuccess

REFUSED = 0.25
"""Seconds before a queue that was not plain is asked again."""

Done = tuple[list[bool], Reserved | None]
"""Which settlements were carried out, and what was claimed; None: the claim is left for the long way."""


class ShortWay:
    """Decides what goes the short way, for one store."""

    def __init__(self) -> None:
        self._refused: dict[str, float] = {}

    def fits(self, items: Sequence[Settlement], claim: Reserve | None) -> bool:
        """Whether it is worth trying with all of this."""
        if claim is not None:
            any_task = claim.handlers is None and claim.keys and not claim.reservation
            if not any_task or len(claim.queues) != 1 or claim.limit < 1:
                return False
            if self._refused and self._refused.get(claim.queues[0], 0.0) > time.monotonic():
                return False
        return all(_is_plain(item) for item in items)

    def go(self, session: Session, items: Sequence[Settlement], claim: Reserve | None, now: int) -> Promise[Done]:
        """Send all of it; the queue is locked before the tasks, as everywhere."""
        short = session.short
        assert short is not None
        if claim is not None:
            session.lock_later(claim.queues)
        acked = short.succeed_plain([_success(item, now) for item in items], now, DEFAULT_RETENTION_OK)
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

    def _reserved(self, claim: Reserve, claimed: PlainClaim | None, now: int) -> Reserved | None:
        name = claim.queues[0]
        if claimed is None:
            self._refused = {queue: end for queue, end in self._refused.items() if end > time.monotonic()}
            self._refused[name] = time.monotonic() + REFUSED
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
