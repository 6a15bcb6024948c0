"""What the tests of the SQL stores share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from taskmq.codec import Envelope, encode
from taskmq.ids import new_id
from taskmq.message import Delivery, Message
from taskmq.outcome import Ack
from taskmq.queue import Limit, Partition
from taskmq.transport.base import Publish, Receipt, Reserve, Settle, Settlement, Store


def message(
    queue: str = "q", partition: str | None = None, limit: Limit | None = None, key: str | None = None
) -> Message:
    place = None if partition is None else Partition(partition)
    return Message(
        id=new_id(), queue=queue, handler="h", body=encode(Envelope()), partition=place, limit=limit, key=key
    )


def publish(store: Store, count: int = 1, queue: str = "q") -> list[Receipt]:
    return store.publish(Publish(messages=[message(queue) for _ in range(count)]))


def publish_all(store: Store, *messages: Message) -> None:
    store.publish(Publish(messages=messages))


def churn(
    store: Store,
    rounds: int,
    queue: str,
    held: Sequence[Delivery] = (),
    batch: int = 10,
    partition: str | None = None,
    keys: str | None = None,
) -> None:
    """Every verb of the hot path on a queue; ``held`` is settled first. Each round's partitions and keys are new."""
    if held:
        acknowledge(store, held)
    for number in range(rounds):
        acknowledge(store, claim(store, batch, queue))
        places = [f"{number}-{n}" for n in range(batch)]
        publish_all(store, *(message(queue, partition and partition + at, key=keys and keys + at) for at in places))


def claim(store: Store, n: int = 10, queue: str = "q") -> list[Delivery]:
    return store.reserve(Reserve(queues=[queue], limit=n, worker="w")).deliveries


def acknowledge(store: Store, held: Sequence[Delivery]) -> list[bool]:
    return store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in held]))


def work_off_by_all(stores: Sequence[Store]) -> list[str]:
    """Each store in a thread of its own; what each has done, behind one another."""
    with ThreadPoolExecutor(len(stores)) as pool:
        return [task_id for done in pool.map(work_off, stores) for task_id in done.elements()]


def work_off(store: Store, queue: str = "q") -> Counter[str]:
    done: Counter[str] = Counter()
    while held := claim(store, 10, queue):
        assert all(acknowledge(store, held))
        done.update(delivery.id for delivery in held)
    return done
