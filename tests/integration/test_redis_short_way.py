"""Plain calls go the short way (lua/include/short.lua): few commands, and what the long way would have written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taskmq.durations import Moment
from taskmq.outcome import Ack, Retry
from taskmq.queue import Limit, QueueConfig
from taskmq.testing.clock import FakeClock
from taskmq.testing.servers import RedisServer
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store
from taskmq.transport.redis import transport
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.scripts import Call, Library, library
from taskmq.transport.redis.settings import Settings
from taskmq.transport.redis.transport import RedisTransport
from taskmq.transport.registry import open_store
from tests.integration.redis_help import HOUR, admin, message, own_server, publish
from tests.partition_programs import Program

FOREIGN = {"info", "config|resetstat", "fcall", "ping", "hello", "client|setinfo"}


def commands(server: RedisServer, act: Callable[[], object]) -> int:
    """How many commands the server runs for this, those inside of scripts."""
    admin(server, "CONFIG", "RESETSTAT")
    act()
    stats = admin(server, "INFO", "commandstats").decode()
    calls = re.findall(r"^cmdstat_(\S+?):calls=(\d+),", stats, re.MULTILINE)
    return sum(int(number) for name, number in calls if name not in FOREIGN)


def claim(store: Store, limit: int) -> Settle:
    """Claim so many, and end them with success when it is sent."""
    taken = store.reserve(Reserve(queues=["q"], limit=limit, worker="w")).deliveries
    return Settle(items=[Settlement(delivery, Ack(b"1")) for delivery in taken])


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("settings", [QueueConfig(), QueueConfig(order="aging"), QueueConfig(max_running=500)])
def test_a_plain_call_is_as_many_commands_whatever_its_size(size: int, settings: QueueConfig) -> None:
    with own_server() as server:
        store = open_store(server.url())
        store.configure_queues({"q": settings})
        publish(store, 200)
        claim(store, 1)
        messages = [message() for _ in range(size)]
        assert commands(server, lambda: store.publish(Publish(messages=messages))) <= 10
        claims: list[Settle] = []
        assert commands(server, lambda: claims.append(claim(store, size))) <= 9
        assert commands(server, lambda: store.settle(claims[0])) <= 8
        assert len(claims[0].items) == size


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("code", ["!p{}", "p{}"])
def test_a_call_about_simple_partitions_is_few_commands_for_each_of_them(size: int, code: str) -> None:
    """Of each partition its line is read and changed, and of some the turn; all else once for all of them."""
    with own_server() as server:
        store = open_store(server.url())
        for _ in range(2):
            store.publish(Publish(messages=[message(partition=code.format(i)) for i in range(100)]))
        assert all(store.settle(claim(store, 1)))
        messages = [message(partition=code.format(i)) for i in range(size)]
        assert commands(server, lambda: store.publish(Publish(messages=messages))) <= 11 + 2 * size
        claims: list[Settle] = []
        assert commands(server, lambda: claims.append(claim(store, size))) <= 11 + 2 * size
        assert commands(server, lambda: store.settle(claims[0])) <= 10 + 2 * size
        assert len(claims[0].items) == size


def test_a_run_of_a_partition_is_a_few_commands() -> None:
    with own_server() as server:
        store = open_store(server.url())
        publish(store, 100, partition="!p")
        assert all(store.settle(claim(store, 1)))
        claims: list[Settle] = []
        assert commands(server, lambda: claims.append(claim(store, 50))) <= 14
        assert commands(server, lambda: store.settle(claims[0])) <= 12
        assert len(claims[0].items) == 50


def test_what_is_not_plain_goes_the_long_way_and_ends_as_well() -> None:
    with own_server() as server:
        store = open_store(server.url())
        publish(store, 3)
        store.publish(
            Publish(
                messages=[
                    message(),
                    message(limit=Limit("u", 1)),
                    message(expires=Moment(HOUR, True)),
                    message(key="k"),
                    message(partition="!p"),
                ]
            )
        )
        taken = claim(store, 20).items
        assert len(taken) == 8
        outcomes = [Retry(0, error="E") if at == 4 else Ack() for at in range(8)]
        items = [Settlement(item.delivery, outcome) for item, outcome in zip(taken, outcomes, strict=True)]
        assert all(store.settle(Settle(items=items)))
        assert len(claim(store, 20).items) == 1
        assert not any(store.settle(Settle(items=items)))


def test_the_same_id_twice_in_one_call_is_one_task() -> None:
    with own_server() as server:
        store = open_store(server.url())
        publish(store, 1)
        twice = message()
        first, second = store.publish(Publish(messages=[twice, twice]))
        assert (first.id, first.duplicate, second.id, second.duplicate) == (twice.id, False, twice.id, True)
        held = claim(store, 9).items
        assert len(held) == 2
        assert store.settle(Settle(items=[held[1], held[1], held[0]])) == [True, False, True]


WAYS = {
    "short": (("if reply then\n", "if reply then\n    redis.call('HINCRBY', 'taken', name, '1')\n"),),
    "long": (
        ("short[name] and short[name](ARGV)", "nil"),
        ("(kind == 'A' or kind == 'a') and rest.ack(", "false and rest.ack("),
    ),
}
"""How the library is changed: to count the calls that go the short way, or to know none."""


def by_way(way: str, server: RedisServer, clock: FakeClock) -> Store:
    """A store whose scripts go one way."""
    text = library().text
    for known, new in WAYS[way]:
        assert known in text
        text = text.replace(known, new)
    other = Library(text, way, library().scripts)
    admin(server, "FUNCTION", "LOAD", "REPLACE", other.source().decode())
    store = open_store(server.url(f"{way}:"), clock=clock)
    runner: Any = cast(RedisTransport, store)._runner
    scripts = runner.scripts

    def renamed(calls: Sequence[Call], *, again: bool = False) -> list[Any]:
        known = [call.script._replace(function=other.function(call.script.name).encode()) for call in calls]
        return list(scripts([call._replace(script=it) for call, it in zip(calls, known, strict=True)], again=again))

    runner.scripts = renamed
    return store


class TwoWays(Program):
    """A program on two stores of one server, which must look the same key by key after each step."""

    raw: Server

    def compare(self) -> None:
        first, second = (everything_of(self.raw, prefix) for prefix in ("short:", "long:"))
        assert first == second
        self.raw.commands([("DEL", f"{way}:wake:{queue}") for way in WAYS for queue in self.queues])

    def lose(self) -> None:
        """A task's record is deleted by hand."""
        if self.held and self.random.random() < 0.1:
            task_id = self.random.choice(self.held)[0].id
            self.raw.commands([("DEL", f"{way}:t:{task_id}") for way in WAYS])


READ = {"string": ("GET",), "zset": ("ZRANGE", 0, -1, "WITHSCORES"), "hash": ("HGETALL",), "list": ("LRANGE", 0, -1)}


def everything_of(raw: Server, prefix: str) -> dict[str, Any]:
    """All keys of a store and what they hold."""
    keys = raw.command("KEYS", f"{prefix}*")
    kinds = [kind.decode() for kind in raw.commands([("TYPE", key) for key in keys])]
    reads = [READ.get(kind, ("SMEMBERS",)) for kind in kinds]
    values = raw.commands([(read[0], key, *read[1:]) for read, key in zip(reads, keys, strict=True)])
    found: dict[str, Any] = {}
    for key, kind, value in zip(keys, kinds, values, strict=True):
        name = key.decode().removeprefix(prefix)
        if kind == "hash":
            value = dict(zip(value[::2], value[1::2], strict=True))
        if name.startswith("counts"):
            value = {field: count for field, count in value.items() if count != b"0"}
        found[name] = set(value) if kind == "set" else value
    return found


@pytest.mark.parametrize("seeds", [range(15), range(15, 30)])
def test_the_short_way_writes_what_the_long_way_writes(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()
    urandom = SimpleNamespace(urandom=lambda size: (next(count) // 2).to_bytes(size, "big"))  # one batch, claimed twice
    monkeypatch.setattr(transport, "os", urandom)
    with own_server() as server, closing(Server(Settings(server.url()))) as raw:
        for seed in seeds:
            clock = FakeClock()
            short, long = (by_way(way, server, clock) for way in WAYS)
            program = TwoWays(seed, short, long, clock)
            program.raw = raw
            program.rare.append(program.lose)
            program.run(40)
            for store in (short, long):
                store.flush()
                store.close()
        taken = raw.command("HGETALL", "taken")
    assert dict(zip(taken[::2], map(int, taken[1::2]), strict=True)).keys() == {b"publish", b"reserve", b"settle"}
