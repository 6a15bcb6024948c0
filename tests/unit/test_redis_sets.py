"""Claims from many queues, which the server knows as a set."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.testing.servers import redis_server
from taskmq.transport.base import Publish, Reserve, Settle
from taskmq.transport.redis.open import open_url
from taskmq.transport.redis.transport import RedisTransport

QUEUES = [f"q{i}" for i in range(60)]


@pytest.fixture(params=["on", "off"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisTransport]:
    opened = open_url(redis_server("redis").url(f"{secrets.token_hex(4)}:", lua=request.param))
    yield opened
    opened.flush()
    opened.close()


def publish(store: RedisTransport, queue: str) -> str:
    message = Message(id=new_id(), queue=queue, handler="h", body=b"{}")
    store.publish(Publish(messages=[message]))
    return message.id


def claim(store: RedisTransport, queues: list[str] = QUEUES) -> list[str]:
    return [d.id for d in store.reserve(Reserve(queues=queues, limit=10, worker="w")).deliveries]


def test_a_set_finds_what_comes_into_any_of_its_queues(store: RedisTransport) -> None:
    """The first claims tell the server the queues' names; later ones find tasks by the set alone, and no others."""
    for round_ in range(4):
        published = [publish(store, f"q{7 * round_}"), publish(store, f"q{59 - round_}")]
        other = publish(store, "elsewhere")
        assert sorted(claim(store)) == sorted(published)
        assert claim(store, ["elsewhere"]) == [other]


def test_a_set_that_is_gone_is_told_again(store: RedisTransport) -> None:
    """After a flush, a failover or a day the server knows no set; then a claim costs one round trip more."""
    for _ in range(3):
        claim(store)
    for key in store._runner.command("KEYS", f"{store._prefix}set:*"):
        store._runner.command("DEL", key)
    wanted = publish(store, "q5")
    assert claim(store) == [wanted]
    assert store._runner.command("KEYS", f"{store._prefix}set:*")
    for key in store._runner.command("KEYS", f"{store._prefix}set:*"):
        store._runner.command("DEL", key)
    wanted = publish(store, "q6")
    reserve = Reserve(queues=QUEUES, limit=10, worker="w")
    assert [d.id for d in store.settle_and_reserve(Settle(items=[]), reserve)[1].deliveries] == [wanted]
