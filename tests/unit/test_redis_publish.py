"""Publishes that come together, on Redis."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from taskmq.errors import IdempotencyConflict, QueueFull
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.queue import QueueConfig
from taskmq.testing.servers import redis_server
from taskmq.transport.base import Reserve
from taskmq.transport.group import Call
from taskmq.transport.redis.open import open_url
from taskmq.transport.redis.transport import RedisTransport


@pytest.fixture(params=["on", "off"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisTransport]:
    opened = open_url(redis_server("redis").url(f"{secrets.token_hex(4)}:", lua=request.param))
    yield opened
    opened.close()


def message(queue: str = "q", key: str | None = None, body: bytes = b"{}") -> Message:
    return Message(id=new_id(), queue=queue, handler="h", body=body, key=key)


def test_publishes_together_are_stored_in_order(store: RedisTransport) -> None:
    """Each caller gets the receipts of its own messages, and tasks run in the order of the callers."""
    calls = [Call([message(), message()]), Call([message()]), Call([message(key="k"), message()])]
    store._publish_together(calls)
    wanted = [m.id for call in calls for m in call.wish]
    assert [receipt.id for call in calls for receipt in call.result] == wanted
    claimed = store.reserve(Reserve(queues=["q"], limit=9, worker="w")).deliveries
    assert [delivery.id for delivery in claimed] == wanted


def test_a_refused_publish_concerns_its_own_caller_alone(store: RedisTransport) -> None:
    """A conflict and a full queue are raised to who caused them; what came together with them is stored."""
    store.configure_queues({"small": QueueConfig(max_queued=1)})
    calls = [
        Call([message(key="k", body=b"{}")]),
        Call([message(key="k", body=b'{"args":[1]}'), message()]),
        Call([message(key="k", body=b"{}")]),
        Call([message("small"), message("small")]),
        Call([message()]),
    ]
    store._publish_together(calls)
    assert [type(call.error) for call in calls] == [type(None), IdempotencyConflict, type(None), QueueFull, type(None)]
    assert [(r.id, r.duplicate) for r in calls[2].result] == [(calls[0].wish[0].id, True)]
    claimed = store.reserve(Reserve(queues=["q", "small"], limit=9, worker="w")).deliveries
    assert [delivery.id for delivery in claimed] == [calls[0].wish[0].id, calls[4].wish[0].id]
