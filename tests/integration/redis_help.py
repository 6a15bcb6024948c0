"""What the tests of Redis and Valkey servers share: servers of their own, an administrator, a few verbs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import redis

from taskmq.codec import Envelope, encode
from taskmq.durations import Moment
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.outcome import Ack, Dead, Outcome, Retry
from taskmq.queue import Limit, Partition, QueueConfig, Rate
from taskmq.testing.servers import Kind, RedisServer
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store, WorkerInfo

HOUR = 3_600_000_000


def message(
    queue: str = "q", partition: str | None = None, size: int = 0, weight: int | None = None, **fields: Any
) -> Message:
    body = encode(Envelope(headers={"x": "x" * size}))
    part = Partition(partition, weight=weight) if partition else None
    return Message(id=new_id(), queue=queue, handler="h", body=body, partition=part, **fields)


def publish(store: Store, count: int = 1, **options: Any) -> list[Message]:
    messages = [message(**options) for _ in range(count)]
    store.publish(Publish(messages=messages))
    return messages


def work_off(store: Store, *queues: str) -> list[str]:
    """Claim and acknowledge until nothing is left; the ids in that order."""
    done: list[str] = []
    while got := store.reserve(Reserve(queues=queues or ("q",), limit=10, worker="w")).deliveries:
        assert all(store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in got])))
        done += [delivery.id for delivery in got]
    return done


def everything(store: Store) -> None:
    """Something of all that a store can hold: lines, leases, blocks, limits, keys, dead letters, a lock, a worker."""
    store.configure_queues({"q": QueueConfig(rate=Rate(count=100, per=1.0), on_dead="hold")})
    publish(store, 2, partition="!x")
    publish(store, 1, partition="p", weight=3, key="k", limit=Limit("u", 1))
    publish(store, 2, limit=Limit("u", 1))
    publish(store, 1, run_after=Moment(HOUR, True))
    claimed = store.reserve(Reserve(queues=["q"], limit=9, worker="w")).deliveries
    outcomes: tuple[Outcome, ...] = (Retry(HOUR, error="E"), Dead("failed"))
    store.settle(Settle(items=[Settlement(d, outcome) for d, outcome in zip(claimed, outcomes, strict=False)]))
    publish(store, 2)
    store.reserve(Reserve(queues=["q"], limit=1, worker="w"))
    store.lock("lock", "me", HOUR)
    worker = WorkerInfo(id="w", host="h", pid=7, queues=["q"], pool="threads", concurrency=1, version="0", started_at=0)
    store.heartbeat(worker, HOUR)


@contextlib.contextmanager
def own_server(*options: str, kind: Kind = "redis", program: str | None = None) -> Iterator[RedisServer]:
    """A server for one test, with settings of its own."""
    server = RedisServer(kind, *options, program=program)
    try:
        yield server
    finally:
        server.stop()


def admin(server: RedisServer, *command: str) -> Any:
    """The reply to an administrator's command."""
    connect: Any = redis.UnixDomainSocketConnection
    connection = connect(path=server.socket, protocol=2)
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()
