"""Clients that stop in the middle, never read, or never stop: each is let go, and others notice nothing."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from taskmq.server import protocols
from taskmq.server.workers.connection import MAX_UNANSWERED
from taskmq.transport.sql.sqlite.connection import Settings as Url
from taskmq.wire.codes import SUBPROTOCOL
from tests.server.kit import LOOPBACK, Running, Socket, running, token


@contextmanager
def line(server: Running, *, room: int | None = None) -> Iterator[socket.socket]:
    """A TCP connection; ``room``: bytes that its side takes without being read."""
    with socket.socket() as made:
        if room is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        made.settimeout(10)
        made.connect((LOOPBACK, server.port))
        yield made


def until_closed(made: socket.socket) -> bytes:
    """All that still comes."""
    received = b""
    try:
        while data := made.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


def test_a_head_that_never_ends_is_not_waited_for(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "HEADER_SECONDS", 0.2)
    with line(server) as made:
        made.sendall(HEAD)
        assert until_closed(made) == b""
    with line(server) as made:  # the same for the second request of a connection
        made.sendall(HEAD + b"\r\n" + HEAD)
        assert until_closed(made).count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "lines", [b"x: y\r\n" * 100, b"x: %b\r\n" % (b"y" * 8200), b"x: " + b"y" * 900_000], ids=["101", "8 KiB", "endless"]
)
def test_more_or_longer_header_lines_are_refused(server: Running, lines: bytes) -> None:
    with line(server) as made:
        try:
            made.sendall(HEAD + lines + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = until_closed(made)  # none, where the refused rest reset the line
        assert not answer or answer.startswith(b"HTTP/1.1 431")
    with line(server) as made:
        made.sendall(HEAD + b"x: y\r\n" * 98 + b"Connection: close\r\n\r\n")
        assert until_closed(made).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "bad", [b"x: a\rb\r\n", b"x: a\x00b\r\n", b"x : a\r\n", b"Content-Length: 1\r\nContent-Length: 2\r\n"]
)
def test_headers_that_could_be_read_in_two_ways_are_refused(server: Running, bad: bytes) -> None:
    with line(server) as made:
        made.sendall(HEAD + bad + b"\r\n")
        assert until_closed(made).startswith(b"HTTP/1.1 400")


def test_a_header_of_the_caller_does_not_reach_the_answer(server: Running) -> None:
    injected = server.http.get("/v1/tasks", headers={"Request-Id": "a%0d%0aSet-Cookie: x=1"})
    assert "set-cookie" not in injected.headers
    assert len(injected.headers["request-id"]) == 32


def test_a_body_that_stops_is_not_waited_for(tmp_path: Path) -> None:
    with running(tmp_path, body_idle=0.2) as own, line(own) as made:
        made.sendall(
            b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
            b"Content-Length: 100\r\nAuthorization: Bearer %b\r\n\r\n{" % own.token.encode()
        )
        assert until_closed(made).startswith(b"HTTP/1.1 400")


def test_a_flood_of_pings_ends_a_connection(server: Running) -> None:
    with Socket(server) as worker:
        worker.hello()
        for i in range(12):
            worker.link.ping(str(i))
        assert worker.closed() == (1008, "PING_FLOOD")


def test_a_worker_that_never_reads_is_let_go(tmp_path: Path) -> None:
    with running(tmp_path, write_stall=0.3, heartbeat_timeout=60.0) as own, line(own, room=4096) as made:
        uri = parse_uri(f"ws://{LOOPBACK}:{own.port}/v1/workers/connect")
        talk = ClientProtocol(uri, subprotocols=[SUBPROTOCOL])  # type: ignore[list-item]
        request = talk.connect()
        request.headers["Authorization"] = f"Bearer {own.token}"
        talk.send_request(request)
        made.sendall(b"".join(talk.data_to_send()))
        talk.receive_data(made.recv(65536))
        say(talk, made, type="hello", protocol=1, worker_id="w", capabilities=[{"handler": "h"}], capacity=1)
        items = [{"task_id": "0" * 32, "epoch": 1}] * 1000
        ref, sent = 0, time.monotonic()
        try:
            while time.monotonic() - sent < 10:  # each answer is as long as its question
                say(talk, made, type="release", ref=(ref := ref + 1), items=items)
        except OSError:  # it has been let go, or it is not read from any more, being 64 answers behind
            pass
        assert until_gone(own)
        with Socket(own) as other:
            assert other.hello()["type"] == "welcome"


def say(talk: ClientProtocol, made: socket.socket, **message: object) -> None:
    talk.send_text(json.dumps(message).encode())
    made.settimeout(1.5)
    made.sendall(b"".join(talk.data_to_send()))


def until_gone(own: Running) -> bool:
    """Whether the server has no connection any more, within ten seconds."""
    end = time.monotonic() + 10
    while own.application.hub.connections and time.monotonic() < end:
        time.sleep(0.02)
    return not own.application.hub.connections


def test_sixty_four_requests_without_an_answer_are_the_most_that_is_read(tmp_path: Path) -> None:
    with running(tmp_path, store_timeout=20.0) as own, Socket(own) as worker:
        worker.hello()
        own.submit("k")
        task = worker.take()
        path = Url(own.settings.database_url).path
        with closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            for ref in range(10, 100):
                worker.say(type="start", ref=ref, **token(task))
            (connection,) = own.application.hub.connections
            end = time.monotonic() + 5
            while connection.unanswered < MAX_UNANSWERED and time.monotonic() < end:
                time.sleep(0.01)
            worker.say(type="renew", ref=100, items=[])
            with pytest.raises(TimeoutError):
                worker.hear(0.3)
            assert connection.unanswered == MAX_UNANSWERED
            lock.execute("ROLLBACK")
        refs = [worker.hear()["ref"] for _ in range(91)]
        assert sorted(refs) == list(range(10, 101))


@pytest.mark.parametrize(("path", "size"), [("/v1/tasks", 1_048_577), ("/v1/tasks:batch", 8 * 1_048_576 + 1)])
def test_who_sends_a_body_to_its_end_gets_the_answer_that_it_is_too_large(
    server: Running, path: str, size: int
) -> None:
    for _ in range(5):
        with closing(http.client.HTTPConnection(LOOPBACK, server.port, timeout=10)) as made:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.token}"}
            made.request("POST", path, b" " * size, {**headers, "Idempotency-Key": "k"})
            answer = made.getresponse()
            assert (answer.status, json.loads(answer.read())["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
            assert answer.headers["Connection"] == "close"
