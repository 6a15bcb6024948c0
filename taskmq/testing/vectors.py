"""Runs the programs of ``vectors.json`` (model.md §11) against a store and checks every answer."""

from __future__ import annotations

from collections.abc import Sequence
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
    """One program against one store whose clock is ``clock``.

    ``together``: publishes and acks that follow one another go in one call each, which is the same by the rule and
    needs half the exchanges.
    """

    def __init__(self, program: dict[str, Any], store: Store, clock: FakeClock, *, together: bool = False) -> None:
        steps = program["steps"]
        self._steps = _together(steps) if together else [(verb, [args]) for verb, *args in steps]
        self._store = store
        self._clock = clock
        self._names: dict[str, str] = {}
        self._held: dict[str, Delivery] = {}
        store.configure_queues({name: QueueConfig(**settings) for name, settings in program["queues"].items()})

    def run(self) -> None:
        """Run all steps; raises AssertionError at the first wrong answer."""
        for number, (verb, rows) in enumerate(self._steps):
            try:
                getattr(self, f"_{verb}")(*zip(*rows, strict=True))
            except AssertionError as error:
                raise AssertionError(f"step {number} {verb} {rows}: {error}") from None

    def _publish(self, tasks: Sequence[dict[str, Any]]) -> None:
        self._store.publish(Publish(messages=[self._message(task) for task in tasks]))

    def _message(self, task: dict[str, Any]) -> Message:
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
        return message

    def _reserve(self, wants: Sequence[dict[str, Any]], answers: Sequence[list[str]]) -> None:
        (want,), (answer,) = wants, answers
        got = self._store.reserve(Reserve(queues=want["queues"], limit=want["n"], worker="w", lease=_LEASE))
        for delivery in got.deliveries:
            self._held[self._names[delivery.id]] = delivery
        names = [self._names[delivery.id] for delivery in got.deliveries]
        assert names == answer, f"got {names}"

    def _settle(self, names: Sequence[str], outcome: Outcome) -> None:
        items = [Settlement(self._held.pop(name), outcome) for name in names]
        assert all(self._store.settle(Settle(items=items))), "a lease is lost"

    def _ack(self, names: Sequence[str]) -> None:
        self._settle(names, Ack())

    def _retry(self, names: Sequence[str], delays_ms: Sequence[int]) -> None:
        self._settle(names, Retry(delays_ms[0] * 1000))

    def _pause(self, queues: Sequence[str], on: Sequence[bool]) -> None:
        self._store.pause_queue(queues[0], on[0])

    def _advance(self, ms: Sequence[int]) -> None:
        self._clock.advance(ms[0] / 1000)


def _together(steps: Sequence[Sequence[Any]]) -> list[tuple[str, list[list[Any]]]]:
    """(verb, the arguments of each of its calls in a row)."""
    groups: list[tuple[str, list[list[Any]]]] = []
    for verb, *args in steps:
        if verb in ("publish", "ack") and groups and groups[-1][0] == verb:
            groups[-1][1].append(args)
        else:
            groups.append((verb, [args]))
    return groups
