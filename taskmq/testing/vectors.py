"""Runs the programs of ``vectors.json`` (model.md §11) against a store and checks every answer."""

from __future__ import annotations

from typing import Any

from taskmq.codec import Envelope, encode
from taskmq.durations import Moment
from taskmq.ids import new_id
from taskmq.message import Delivery, Message
from taskmq.outcome import Ack, Outcome, Retry
from taskmq.queue import Partition, QueueConfig
from taskmq.testing.clock import FakeClock
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store

_BODY = encode(Envelope())
_LEASE = 10**15
"""Leases never end in these programs."""


class Program:
    """One program against one store whose clock is ``clock``."""

    def __init__(self, program: dict[str, Any], store: Store, clock: FakeClock) -> None:
        self._steps = program["steps"]
        self._store = store
        self._clock = clock
        self._names: dict[str, str] = {}
        self._held: dict[str, Delivery] = {}
        store.configure_queues({name: QueueConfig(**settings) for name, settings in program["queues"].items()})

    def run(self) -> None:
        """Run all steps; raises AssertionError at the first wrong answer."""
        for number, step in enumerate(self._steps):
            verb, *args = step
            try:
                getattr(self, f"_{verb}")(*args)
            except AssertionError as error:
                raise AssertionError(f"step {number} {step}: {error}") from None

    def _publish(self, task: dict[str, Any]) -> None:
        partition = task.get("partition")
        message = Message(
            id=new_id(),
            queue=task["queue"],
            handler="h",
            body=_BODY,
            priority=task["priority"],
            partition=Partition(partition, weight=task.get("weight")) if partition else None,
            run_after=Moment(task["delay"] * 1000, relative=True) if task.get("delay") else None,
            max_attempts=1000,
        )
        self._names[message.id] = task["id"]
        self._store.publish(Publish(messages=[message]))

    def _reserve(self, want: dict[str, Any], answer: list[str]) -> None:
        got = self._store.reserve(Reserve(queues=want["queues"], limit=want["n"], worker="w", lease=_LEASE))
        for delivery in got.deliveries:
            self._held[self._names[delivery.id]] = delivery
        names = [self._names[delivery.id] for delivery in got.deliveries]
        assert names == answer, f"got {names}"

    def _settle(self, name: str, outcome: Outcome) -> None:
        settled = self._store.settle(Settle(items=[Settlement(self._held.pop(name), outcome)]))
        assert settled == [True], "the lease is lost"

    def _ack(self, name: str) -> None:
        self._settle(name, Ack())

    def _retry(self, name: str, delay_ms: int) -> None:
        self._settle(name, Retry(delay_ms * 1000))

    def _pause(self, queue: str, on: bool) -> None:
        self._store.pause_queue(queue, on)

    def _advance(self, ms: int) -> None:
        self._clock.advance(ms / 1000)
