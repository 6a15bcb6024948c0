"""The stores that tests run on, by name: one table for all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from taskmq.testing.clock import FakeClock
from taskmq.testing.mariadb_server import mariadb_server
from taskmq.testing.redis_cluster import redis_cluster
from taskmq.testing.servers import Kind, redis_server
from taskmq.testing.sql_servers import Kind as SqlKind
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.base import Store
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.settings import Settings
from taskmq.transport.registry import open_store

Factory = Callable[[FakeClock, Path], Store]


def _redis(kind: Kind, clock: FakeClock, place: Path, **options: Any) -> Store:
    return open_store(redis_server(kind).url(f"{place.name}:", **options), clock=clock)


def _postgresql(kind: SqlKind, clock: FakeClock, place: Path, **options: str) -> Store:
    server = postgres_server(kind)
    return open_store(server.url(server.place(str(place)), **options), clock=clock)


def _redis_cluster(kind: Kind, clock: FakeClock, place: Path, **options: Any) -> Store:
    return open_store(redis_cluster(kind).url(f"{place.name}:", **options), clock=clock)


def _plain(clock: FakeClock, place: Path) -> Store:
    """As a user who may not use functions, so that every script is sent by EVALSHA."""
    server = redis_server("redis")
    with closing(Server(Settings(server.url()))) as boss:
        boss.command("ACL", "SETUSER", "plain", "on", ">plain", "~*", "&*", "+@all", "-function", "-fcall")
    return open_store(server.url(f"{place.name}:").replace("unix://", "unix://plain:plain@"), clock=clock)


def _mariadb(clock: FakeClock, place: Path) -> Store:
    server = mariadb_server()
    return open_store(server.url(server.place(str(place))), clock=clock)


STORES: dict[str, Factory] = {
    "memory": lambda clock, place: open_store("memory://", clock=clock),
    "sqlite": lambda clock, place: open_store(f"sqlite:///{place}/q.db?synchronous=off", clock=clock),
    "postgresql": partial(_postgresql, "postgresql"),
    "postgresql-new": partial(_postgresql, "postgresql-new"),
    "mariadb": _mariadb,
    "redis": partial(_redis, "redis"),
    "redis-plain": _plain,
    "redis-nolua": partial(_redis, "redis", lua="off"),
    "valkey": partial(_redis, "valkey"),
    "valkey-nolua": partial(_redis, "valkey", lua="off"),
    "redis-cluster": partial(_redis_cluster, "redis"),
    "redis-cluster-nolua": partial(_redis_cluster, "redis", lua="off"),
}
