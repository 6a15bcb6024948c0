"""Connections to Redis without the driver between us and the socket."""

from __future__ import annotations

import gc
import secrets
import sys
import threading
from typing import Any

import pytest
from redis.exceptions import ResponseError

from taskmq.errors import OutcomeUnknown
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.testing.servers import redis_server
from taskmq.transport.base import Publish, Receipt, Reserve
from taskmq.transport.redis import direct, exchange
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.open import open_url
from taskmq.transport.redis.settings import Settings
from taskmq.transport.redis.transport import receipts


def server(**options: Any) -> Server:
    return Server(Settings(redis_server("redis").url(f"{secrets.token_hex(4)}:", **options)))


def message() -> Message:
    return Message(id=new_id(), queue="q", handler="h", body=b"{}")


def test_replies_of_any_size_and_kind_arrive_in_order() -> None:
    """A reply may come in many pieces, and an error among replies stands in its place."""
    opened = server()
    with opened.connection() as connection:
        assert isinstance(connection, direct.Direct)
        large = b"x" * 1_000_000
        commands = [("ECHO", large), ("NO-SUCH-COMMAND",), ("ECHO", "ü"), ("GET", b"none"), ("TIME",)]
        first, error, *rest, time = exchange.exchange("", connection, commands)
    assert (first, rest, len(time)) == (large, ["ü".encode(), None], 2)
    assert type(error) is ResponseError
    opened.close()


def test_a_server_that_is_silent_too_long_leaves_the_outcome_unknown() -> None:
    """The timeout of the URL holds for each reply, and the connection is not used again."""
    opened = server(socket_timeout="0.1")
    connection = opened.take()
    opened.put(connection)
    with pytest.raises(OutcomeUnknown, match="timed out"):
        opened.command("BLPOP", b"none", 5, again=False)
    assert opened.take() is not connection
    opened.close()


def test_a_connection_in_use_is_closed_when_it_comes_back_to_a_closed_store() -> None:
    """Also when the store is closed by another thread."""
    opened = server()
    connection = opened.take()
    closing = threading.Thread(target=opened.close)
    closing.start()
    closing.join()
    opened.put(connection)
    with pytest.raises(OutcomeUnknown):
        exchange.exchange("", connection, [("PING",)])


def test_a_store_that_nobody_closes_takes_its_connections_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a warning, also when a collection in between has put its parts into another order."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    store = open_url(redis_server("redis").url(f"{secrets.token_hex(4)}:"))
    store.publish(Publish(messages=[message()]))
    gc.collect()
    del store
    gc.collect()
    assert complaints == []


def test_without_hiredis_everything_goes_through_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is slower, no more."""
    monkeypatch.setattr(direct, "hiredis", None)
    monkeypatch.setattr(exchange, "_pack", None)
    store = open_url(redis_server("redis").url(f"{secrets.token_hex(4)}:"))
    sent = message()
    assert store.publish(Publish(messages=[sent])) == [Receipt(sent.id, False)]
    assert [d.id for d in store.reserve(Reserve(queues=["q"], limit=1, worker="w")).deliveries] == [sent.id]
    store.close()


def test_an_empty_answer_says_that_all_messages_are_new() -> None:
    """As one that names no holder of a key does."""
    sent = [message(), message()]
    wanted = [Receipt(one.id, False) for one in sent]
    assert receipts(sent, []) == receipts(sent, [b"", b""]) == wanted
    assert receipts(sent, [b"", b"other"]) == [wanted[0], Receipt("other", True)]
