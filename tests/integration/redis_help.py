"""What the tests of Redis and Valkey servers share: servers of their own, an administrator, a few verbs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import redis

from taskmq.codec import Envelope, encode
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.outcome import Ack
from taskmq.queue import Partition
from taskmq.testing.servers import Kind, RedisServer
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store


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
