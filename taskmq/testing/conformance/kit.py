"""Kit: a store on a fake clock, spoken to in the words of the model, with names instead of ids.

Each task has a name that the scenario gives it; ``claim`` returns names, and what is done to a delivery names the task
whose *newest* delivery is meant. To speak of an older delivery, keep ``kit.delivery(name)`` from before.

Verbs that must succeed in nearly every scenario (``ack``, ``retry`` …) assert that they did; where refusal is the
point, ``settle`` and ``renew`` return the store's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from taskmq.codec import Envelope, encode
from taskmq.durations import Moment
from taskmq.ids import new_id
from taskmq.message import Delivery, Message
from taskmq.outcome import Ack, Dead, Defer, Outcome, Retry, Yield
from taskmq.queue import Limit, Partition, QueueConfig
from taskmq.state import Progress, TaskInfo, TaskState
from taskmq.testing.conformance.places import LEASE, MANY_ROUNDS, SECOND, Factory, Places, us
from taskmq.transport.base import (
    Extend,
    Find,
    PartitionInfo,
    Publish,
    QueueStats,
    Receipt,
    Renewal,
    Renewed,
    Reserve,
    Reserved,
    Settle,
    Settlement,
    Store,
)


class Kit(Places):
    """One store in one place, and the names of its tasks."""

    def __init__(self, factory: Factory, place: Path) -> None:
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._held: dict[str, Delivery] = {}
        super().__init__(factory, place)

    # ── publish ──

    def message(
        self,
        name: str,
        queue: str = "q",
        *,
        handler: str = "handler",
        args: Sequence[Any] = (),
        headers: Mapping[str, str] | None = None,
        partition: str | None = None,
        weight: int | None = None,
        most: int | None = None,
        delay: float | None = None,
        run_after: Moment | None = None,
        expires: float | None = None,
        deadline: float | None = None,
        key_ttl: float | None = None,
        retention: float | None = None,
        **fields: Any,
    ) -> Message:
        """A message with this name; durations are seconds from now, ``most`` is the partition's max_running."""
        message = Message(
            id=new_id(),
            queue=queue,
            handler=handler,
            body=encode(Envelope(args=msgspec.Raw(msgspec.json.encode(list(args))), headers=dict(headers or {}))),
            partition=None if partition is None else Partition(partition, weight=weight, max_running=most),
            run_after=run_after or _from_now(delay),
            expires=_from_now(expires),
            deadline=_from_now(deadline),
            key_ttl=None if key_ttl is None else us(key_ttl),
            retention=None if retention is None else us(retention),
            **fields,
        )
        self._ids[name], self._names[message.id] = message.id, name
        return message

    def publish(self, *names: str, queue: str = "q", store: Store | None = None, **options: Any) -> list[Receipt]:
        """Publish a task of each name, all with the same options, in one batch."""
        return self.publish_all([self.message(name, queue, **options) for name in names], store)

    def publish_all(self, messages: Sequence[Message], store: Store | None = None) -> list[Receipt]:
        """Publish this batch."""
        return (store or self.store).publish(Publish(messages=messages))

    # ── reserve ──

    def reserve(
        self,
        n: int = 1,
        *queues: str,
        worker: str = "worker",
        lease: float = LEASE,
        store: Store | None = None,
        **capabilities: Any,
    ) -> Reserved:
        """One reserve as the store answers it (queue ``q`` unless named), by a worker with these capabilities."""
        params = Reserve(queues=queues or ("q",), limit=n, worker=worker, lease=us(lease), **capabilities)
        got = (store or self.store).reserve(params)
        for delivery in got.deliveries:
            self._held[self.name(delivery.id)] = delivery
        return got

    def claim(self, n: int = 1, *queues: str, **options: Any) -> list[str]:
        """Names of what one worker gets who asks for n tasks, and again while the store says ``more``."""
        for _ in range(MANY_ROUNDS):
            got = self.reserve(n, *queues, **options)
            if got.deliveries or not got.more:
                return [self.name(delivery.id) for delivery in got.deliveries]
        raise AssertionError("reserve says more for ever and brings nothing")

    def claim_one_by_one(self, n: int, *queues: str, **options: Any) -> list[str]:
        """Names of what n single claims get."""
        return [name for _ in range(n) for name in self.claim(1, *queues, **options)]

    def work_off(self, *queues: str, n: int = 1) -> list[str]:
        """Claim n at a time and acknowledge all, until nothing is left; names in the order of execution."""
        done: list[str] = []
        for _ in range(MANY_ROUNDS):
            names = self.claim(n, *queues)
            if not names:
                return done
            self.ack(*names)
            done += names
        raise AssertionError("the work never ends")

    def name(self, task_id: str) -> str:
        """The name of a task."""
        return self._names[task_id]

    def id(self, name: str) -> str:
        """The id of a task."""
        return self._ids[name]

    def delivery(self, name: str) -> Delivery:
        """The newest delivery of a task."""
        return self._held[name]

    # ── settle, extend ──

    def settle(self, of: str | Delivery, outcome: Outcome, store: Store | None = None) -> bool:
        """End a delivery; returns whether the store accepted it."""
        (accepted,) = self.settle_all([(of, outcome)], store)
        return accepted

    def settle_all(self, items: Iterable[tuple[str | Delivery, Outcome]], store: Store | None = None) -> list[bool]:
        """End deliveries in one call."""
        settlements = [Settlement(self._delivery(of), outcome) for of, outcome in items]
        return (store or self.store).settle(Settle(items=settlements))

    def _delivery(self, of: str | Delivery) -> Delivery:
        return self._held[of] if isinstance(of, str) else of

    def _must(self, name: str, outcome: Outcome) -> None:
        assert self.settle(name, outcome), f"{type(outcome).__name__} of {name} was refused"

    def ack(self, *names: str, result: Any = None) -> None:
        """These succeed, in this order."""
        encoded = None if result is None else msgspec.json.encode(result)
        accepted = self.settle_all([(name, Ack(encoded)) for name in names])
        assert all(accepted), f"ack of {names} was refused: {accepted}"

    def retry(self, name: str, delay: float = 0, error: str | None = None, partition: bool = False) -> None:
        """It failed and shall run again after the delay."""
        self._must(name, Retry(us(delay), error, partition=partition))

    def defer(self, name: str, delay: float, partition: bool = False) -> None:
        """Its handler asks to be run later."""
        self._must(name, Defer(us(delay), partition))

    def hand_back(self, name: str) -> None:
        """It was never started and goes back."""
        self._must(name, Yield())

    def die(self, name: str, reason: str = "failed", error: str | None = "E: gone") -> None:
        """It goes to the dead letters."""
        self._must(name, Dead(reason, error))

    def renew(self, of: str | Delivery, started: bool = False, progress: Progress | None = None) -> Renewed:
        """Renew one lease; returns the store's answer."""
        (answer,) = self.store.extend(Extend(items=[Renewal(self._delivery(of), started, progress)]))
        return answer

    def start(self, *names: str) -> None:
        """Say that these handlers have been started."""
        answers = self.store.extend(Extend(items=[Renewal(self._held[name], True) for name in names]))
        assert all(answer.lease_until is not None for answer in answers), f"a lease of {names} is lost"

    # ── operators ──

    def configure(self, queue: str = "q", **settings: Any) -> None:
        """Give a queue these settings, whatever it had."""
        self.store.configure_queues({queue: QueueConfig(**settings)}, overwrite=True)

    def cancel(self, *names: str) -> list[TaskState | None]:
        """Cancel these; returns the state each is in now."""
        return self.store.cancel([self._ids[name] for name in names])

    def replay(self, *names: str, queue: str | None = None) -> list[bool]:
        """Replay these dead letters."""
        return self.store.replay([self._ids[name] for name in names], queue)

    def look(self, name: str) -> TaskInfo | None:
        """What the store knows of a task."""
        return self.store.get([self._ids[name]])[0]

    def info(self, name: str) -> TaskInfo:
        """What the store knows of a task that must be there."""
        info = self.look(name)
        assert info is not None, f"{name} is gone"
        return info

    def states(self, *names: str) -> list[TaskState | None]:
        """The state each of these is in; None for what is not there."""
        infos = self.store.get([self._ids[name] for name in names])
        return [None if info is None else info.state for info in infos]

    def state(self, name: str) -> TaskState | None:
        """The state it is in; None when it is not there."""
        return self.states(name)[0]

    def find(self, **conditions: Any) -> list[str]:
        """Names of the tasks that one page of a listing shows."""
        return [self.name(info.id) for info in self.store.find(Find(**conditions)).tasks]

    def stats(self, queue: str = "q") -> QueueStats:
        """A queue as it stands."""
        (stats,) = self.store.stats([queue])
        return stats

    def partition(self, code: str, queue: str = "q") -> PartitionInfo | None:
        """A partition as it stands; None when nothing is left of it."""
        return next(iter(self.store.partitions(queue, [code])), None)

    def limit(self, key: str) -> tuple[int, int]:
        """How many tasks of this limit's key run, and how many are parked."""
        info = next(iter(self.store.limits([key])), None)
        return (info.running, info.parked) if info is not None else (0, 0)


def _from_now(seconds: float | None) -> Moment | None:
    return None if seconds is None else Moment(us(seconds), relative=True)


def names(prefix: str, count: int) -> list[str]:
    """``count`` names: prefix1, prefix2, …"""
    return [f"{prefix}{number}" for number in range(1, count + 1)]


def needs(*capabilities: str) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """A scenario that only stores with these capabilities can be asked."""

    def mark(scenario: Callable[[Kit], None]) -> Callable[[Kit], None]:
        scenario.needs = capabilities  # type: ignore[attr-defined]
        return scenario

    return mark


__all__ = ["LEASE", "SECOND", "Factory", "Kit", "names", "needs", "us"]


def occupy(kit: Kit, limit: Limit, name: str = "running", queue: str = "q") -> None:
    """A task takes a slot of a key and keeps it."""
    kit.publish(name, queue=queue, limit=limit)
    assert kit.claim(1, queue, lease=36_000) == [name]
