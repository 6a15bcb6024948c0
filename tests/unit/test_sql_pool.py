"""The pool of connections to a database server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from taskmq.errors import TransportUnavailable
from taskmq.transport.sql.pool import Pool


class Connection:
    def close(self) -> None:
        """Nothing to end."""


def pool(size: int = 1, patience: float = 30.0) -> Pool[Connection]:
    return Pool(Connection, lambda _: True, size, patience)


def test_connections_go_round_in_the_order_of_asking() -> None:
    """Who gives one back and asks again at once stands behind those who wait."""
    shared = pool()
    order: list[str] = []

    def wait_for_it(name: str) -> None:
        with shared.connection():
            order.append(name)

    waiters: list[threading.Thread] = []
    with shared.connection():
        for name in ("first", "second"):
            thread = threading.Thread(target=wait_for_it, args=(name,))
            thread.start()
            waiters.append(thread)
            while len(shared._waiting) < len(waiters):
                threading.Event().wait(0.001)
    with shared.connection():
        order.append("again")
    for thread in waiters:
        thread.join()
    assert order == ["first", "second", "again"]


def test_nobody_waits_for_longer_than_the_patience() -> None:
    """A busy pool is one clear error, and the turn is not lost."""
    shared = pool(patience=0.01)
    with shared.connection(), pytest.raises(TransportUnavailable, match="all 1 connections"), shared.connection():
        pass
    with shared.connection():
        pass


def test_a_failed_connect_gives_its_turn_back() -> None:
    """When the server cannot be reached, the next caller may try."""
    tries: list[Any] = []

    def connect() -> Connection:
        tries.append(None)
        if len(tries) == 1:
            raise TransportUnavailable("not there")
        return Connection()

    shared = Pool(connect, lambda _: True, 1, 1.0)
    with pytest.raises(TransportUnavailable, match="not there"), shared.connection():
        pass
    with shared.connection():
        pass
