"""The stores that tests run on, by name: one table for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from taskmq.testing.clock import FakeClock
from taskmq.testing.servers import Kind, redis_server
from taskmq.testing.sql_servers import Kind as SqlKind
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store

Factory = Callable[[FakeClock, Path], Store]


def _redis(kind: Kind, clock: FakeClock, place: Path, **options: Any) -> Store:
    return open_store(redis_server(kind).url(f"{place.name}:", **options), clock=clock)


def _postgresql(kind: SqlKind, clock: FakeClock, place: Path, **options: str) -> Store:
    server = postgres_server(kind)
    return open_store(server.url(server.place(str(place)), **options), clock=clock)


STORES: dict[str, Factory] = {
    "memory": lambda clock, place: open_store("memory://", clock=clock),
    "sqlite": lambda clock, place: open_store(f"sqlite:///{place}/q.db?synchronous=off", clock=clock),
    "postgresql": partial(_postgresql, "postgresql"),
    "postgresql-new": partial(_postgresql, "postgresql-new"),
    "redis": partial(_redis, "redis"),
    "redis-nolua": partial(_redis, "redis", lua="off"),
    "valkey": partial(_redis, "valkey"),
    "valkey-nolua": partial(_redis, "valkey", lua="off"),
}
