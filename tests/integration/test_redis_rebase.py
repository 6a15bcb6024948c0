"""Virtual time near its limit: it begins anew, and nobody's turn changes (``lua/tidy.lua``)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmq.message import Delivery
from taskmq.outcome import Ack, Retry
from taskmq.testing.clock import FakeClock
from taskmq.testing.servers import redis_server
from taskmq.transport.base import Maintain, Publish, Reserve, Settle, Settlement, Store
from taskmq.transport.redis.keys import Keys
from taskmq.transport.registry import open_store
from tests.integration.redis_help import admin, message
from tests.stores import STORES

TURN = 2**24
LIMIT = 2**48
RANK = 2**49
"""One priority in a turn's score."""
WEIGHTS = {"!a": 1, "!b": 3, "c": 1, "d": 2, "e": 7, None: 1}


class Twins:
    """The same queue in Redis and in the memory model; Redis's virtual time can be moved."""

    def __init__(self, redis: Store, clock: FakeClock, prefix: str) -> None:
        self.clock = clock
        self.redis = redis
        self.memory = open_store("memory://", clock=clock)
        self._keys = Keys(prefix)

    def publish(self, *codes: str | None, priority: int = 0) -> None:
        messages = [message(partition=code, weight=WEIGHTS[code], priority=priority) for code in codes]
        for store in (self.redis, self.memory):
            store.publish(Publish(messages=messages))

    def claim(self, count: int = 1) -> list[tuple[Delivery, Delivery]]:
        """The same tasks from both, or the test fails."""
        reserve = Reserve(queues=["q"], limit=count, worker="w")
        ours, model = (store.reserve(reserve).deliveries for store in (self.redis, self.memory))
        assert [d.id for d in ours] == [d.id for d in model]
        return list(zip(ours, model, strict=True))

    def settle(self, outcome: Ack | Retry, pairs: list[tuple[Delivery, Delivery]]) -> None:
        for store, which in ((self.redis, 0), (self.memory, 1)):
            store.settle(Settle(items=[Settlement(pair[which], outcome) for pair in pairs]))

    def tidy(self) -> None:
        for store in (self.redis, self.memory):
            store.maintain(Maintain())

    def _command(self, *command: str | bytes) -> list[bytes]:
        words = [word.decode() if isinstance(word, bytes) else word for word in command]
        answer = admin(redis_server("redis"), *words)
        return answer if isinstance(answer, list) else [answer]

    def v(self) -> int:
        """The queue's virtual time."""
        return int(self._command("GET", self._keys.of_queue("state", "q"))[0].split(b",")[0])

    def move(self, by: int) -> None:
        """Add to the virtual time and all tags, which changes nobody's turn."""
        key = self._keys.of_queue("state", "q")
        v, j, tag, *rest = self._command("GET", key)[0].decode().split(",")
        self._command("SET", key, ",".join((*(str(int(n) + by) for n in (v, j, tag)), *rest)))
        key = self._keys.of_queue("flows", "q")
        pairs = self._command("HGETALL", key)
        for code, text in zip(pairs[::2], pairs[1::2], strict=True):
            live, tag, rest_of = text.decode().split(",", 2)
            self._command("HSET", key, code, f"{live},{int(tag) + by},{rest_of}")
        for spec in (1, 2):
            key = self._keys.of_spec("turns", spec, "q")
            for code in self._command("ZRANGE", key, "0", "-1"):
                self._command("ZINCRBY", key, str(by), code)

    def tags(self) -> dict[str, int]:
        """The tags of the partitions that may run, by code."""
        found = self._command("ZRANGE", self._keys.of_spec("turns", 1, "q"), "0", "-1", "WITHSCORES")
        return {code.decode(): int(float(s)) % RANK for code, s in zip(found[::2], found[1::2], strict=True)}


@pytest.fixture(params=["redis", "redis-nolua"])
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Twins]:
    clock = FakeClock()
    store = STORES[request.param](clock, tmp_path)
    yield Twins(store, clock, f"{tmp_path.name}:")
    store.flush()
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_turns_stay_the_same_while_virtual_time_begins_anew(twins: Twins, seed: int) -> None:
    """Claims, retries and newcomers around the limit give the memory model's answers, which has no limit."""
    rng = random.Random(seed)
    codes = list(WEIGHTS)
    for code in codes:
        twins.publish(*[code] * 6)
    for _ in range(10):
        twins.settle(Ack(), twins.claim())
    twins.move(LIMIT - twins.v() - 3 * TURN)
    highest = 0
    for step in range(150):
        pairs = twins.claim(rng.choice([1, 1, 1, 2, 4]))
        if pairs and rng.random() < 0.2:
            twins.settle(Retry(rng.choice([0, 2_000_000])), pairs[:1])
            twins.settle(Ack(), [pair for pair in pairs[1:] if pair[0].partition != pairs[0][0].partition])
        else:
            twins.settle(Ack(), pairs)
        twins.publish(*rng.choices(codes, k=rng.choice([0, 1, 2, 3])))
        if step % 10 == 9:
            twins.clock.advance(1)
            highest = max(highest, twins.v())
            twins.tidy()
    assert highest > LIMIT
    assert twins.v() < LIMIT


def test_tags_keep_their_distances_when_virtual_time_begins_anew(twins: Twins) -> None:
    """What was ahead by so many turns is ahead by as many afterwards, with and without a weight."""
    for _ in range(5):
        twins.publish("c", "d", "e", None)
    twins.settle(Ack(), twins.claim(7))
    twins.move(LIMIT + 1 - twins.v())
    v, tags = twins.v(), twins.tags()
    twins.tidy()
    assert 0 <= twins.v() < LIMIT
    assert {code: tag - twins.v() for code, tag in twins.tags().items()} == {
        code: tag - v for code, tag in tags.items()
    }
    while pairs := twins.claim():
        twins.settle(Ack(), pairs)


def test_an_urgent_flood_before_the_limit_leaves_the_others_in_order(twins: Twins) -> None:
    """Flows that wait at a lower priority have tags far behind; when their turn comes it is still the first's."""
    twins.publish("e", "d", "c", "!b", "!a")
    twins.publish(*["c", "d"] * 10, priority=5)
    for _ in range(20):
        twins.settle(Ack(), twins.claim())
    twins.move(LIMIT + 1 - twins.v())
    twins.tidy()
    for _ in range(5):
        twins.settle(Ack(), twins.claim())
