"""Who watches a task on Redis is told of its end; nobody looks again and again, and whatever fails, looking is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from taskmq.outcome import Ack
from taskmq.testing.servers import Kind, RedisServer
from taskmq.testing.signals import PATIENCE
from taskmq.transport.base import Reserve, Settle, Settlement, Store
from taskmq.transport.redis import watching
from taskmq.transport.registry import open_store
from tests.integration.redis_help import admin, own_server, publish


@pytest.fixture(scope="module", params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server whose clients are all of this module."""
    kind: Kind = request.param
    with own_server(kind=kind) as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    admin(server, "FLUSHALL")
    admin(server, "ACL", "SETUSER", "default", "on", "nopass", "+@all")
    store = open_store(server.url())
    yield store
    store.close()


def listeners(server: RedisServer) -> int:
    """How many connections wait to be told."""
    clients = admin(server, "CLIENT", "LIST").decode().splitlines()
    return sum("t" in dict(word.split("=", 1) for word in line.split())["flags"] for line in clients)


def until(true: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE * 200)):
        if true():
            return
        threading.Event().wait(0.005)
    raise AssertionError("waited in vain")


def end(store: Store, count: int) -> None:
    """Claim so many and acknowledge them."""
    got = store.reserve(Reserve(queues=["q"], limit=count, worker="w")).deliveries
    assert all(store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in got])))


def watched(pool: ThreadPoolExecutor, store: Store, task_id: str) -> Future[bool]:
    return pool.submit(store.watch, task_id, PATIENCE)


def test_a_watcher_is_told_and_does_not_look(server: RedisServer, store: Store) -> None:
    """While nothing happens a record is read at most once a second, and when the watch is over nothing is left."""
    (task,) = publish(store)
    admin(server, "CONFIG", "RESETSTAT")
    assert not store.watch(task.id, 0.5)
    stats = next(line for line in _info(server).splitlines() if line.startswith("cmdstat_getrange:"))
    assert int(stats.partition("calls=")[2].partition(",")[0]) <= 3  # at its beginning, as a listener, at its end
    assert listeners(server) == 0


def _info(server: RedisServer) -> str:
    text: bytes = admin(server, "INFO", "commandstats")
    return text.decode()


def test_a_watcher_is_told_of_the_end(server: RedisServer, store: Store) -> None:
    """A claim wakes a listener and lets it go on; the end ends it."""
    (task,) = publish(store)
    with ThreadPoolExecutor() as pool:
        answer = watched(pool, store, task.id)
        until(lambda: listeners(server) == 1)
        end(store, 1)
        assert answer.result(PATIENCE)
    assert listeners(server) == 0


def test_watchers_beyond_the_listeners_look(server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are never more listeners than CONNECTIONS; all watchers learn of their task's end."""
    monkeypatch.setattr(watching, "CONNECTIONS", 2)
    other = open_store(server.url())
    tasks = publish(store, 5)
    with ThreadPoolExecutor(5) as pool:
        answers = [watched(pool, other, task.id) for task in tasks]
        until(lambda: listeners(server) == 2)
        end(store, 5)
        assert [answer.result(PATIENCE) for answer in answers] == [True] * 5
    other.close()


@pytest.mark.parametrize("rules", ["-client", "-client|tracking", "-hello"])
def test_where_it_is_forbidden_a_watcher_looks(server: RedisServer, store: Store, rules: str) -> None:
    """An ACL without CLIENT TRACKING, or a proxy that knows no RESP3, makes a watch slower, not wrong."""
    (task,) = publish(store)
    admin(server, "ACL", "SETUSER", "looker", "reset", "on", ">p", "~*", "&*", "+@all", rules)
    looker = open_store(f"unix://looker:p@{server.socket}")
    with ThreadPoolExecutor() as pool:
        answer = watched(pool, looker, task.id)
        end(store, 1)
        assert answer.result(PATIENCE)
    looker.close()


def test_a_listener_that_loses_its_connection_looks(server: RedisServer, store: Store) -> None:
    """A connection that the server ends while somebody listens costs the watch nothing."""
    (task,) = publish(store)
    with ThreadPoolExecutor() as pool:
        answer = watched(pool, store, task.id)
        until(lambda: listeners(server) == 1)
        admin(server, "CLIENT", "KILL", "TYPE", "normal")
        until(lambda: listeners(server) == 0)
        other = open_store(server.url())
        end(other, 1)
        other.close()
        assert answer.result(PATIENCE)
