"""Every row of the loss-point table: a proxy between worker and server drops just that message."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from taskmq.transport.base import Maintain
from taskmq.wire.codes import SUBPROTOCOL
from tests.server.kit import LOOPBACK, Running, Socket, token


@contextmanager
def proxy(server: Running, drop: str) -> Iterator[str]:
    """A way to the server on which the first message of type ``drop``, and all after it, are lost with the line."""

    def forward(inside: ServerConnection) -> None:
        headers = {"Authorization": inside.request.headers["Authorization"]} if inside.request else {}
        target = f"{server.url.replace('http', 'ws', 1)}/v1/workers/connect"
        with connect(target, additional_headers=headers, subprotocols=[SUBPROTOCOL], close_timeout=0.1) as outside:  # type: ignore[list-item]
            lost = threading.Event()

            def pump(source: Any, sink: Any) -> None:
                try:
                    for data in source:
                        if json.loads(data)["type"] == drop:
                            lost.set()
                        if lost.is_set():
                            break
                        sink.send(data)
                except ConnectionClosed:
                    pass
                finally:
                    for side in (inside, outside):
                        side.close_socket()

            back = threading.Thread(target=pump, args=(outside, inside), daemon=True)
            back.start()
            pump(inside, outside)
            back.join(5)

    with serve(forward, LOOPBACK, 0, subprotocols=[SUBPROTOCOL], close_timeout=0.1) as listening:  # type: ignore[list-item]
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://{LOOPBACK}:{listening.socket.getsockname()[1]}"
        listening.shutdown()
        thread.join(5)


class Worker:
    """A worker that asks over the proxy, loses its line, and comes back directly."""

    def __init__(self, server: Running, drop: str) -> None:
        self.server = server
        self.held: list[dict[str, Any]] = []
        with proxy(server, drop) as url, Socket(server, url=url) as socket:
            self.session = socket.hello()["session_id"]
            with pytest.raises(ConnectionClosed):
                self._work(socket, drop)

    def _work(self, socket: Socket, drop: str) -> None:
        (task,) = socket.claim()
        self.held.append(token(task))
        socket.ask("start", **token(task))
        socket.ask("finish", **token(task), outcome="success", result=1)
        raise AssertionError(f"{drop} was not lost")

    @contextmanager
    def back(self) -> Iterator[tuple[Socket, dict[str, Any]]]:
        with Socket(self.server) as socket:
            resume = {"session_id": self.session, "deliveries": self.held}
            yield socket, socket.hello(resume=resume)


def test_a_lost_claim_took_nothing(own: Running) -> None:
    made = own.submit("k")
    with Worker(own, "claim").back() as (socket, welcome):
        assert (welcome["resumed"], welcome["lost"]) == ([], [])
        (task,) = socket.claim()
        assert (task["task_id"], task["epoch"], task["attempt"]) == (made["task_id"], 1, 1)


def test_a_lost_dispatch_costs_no_attempt_and_comes_back_at_resume(own: Running) -> None:
    made = own.submit("k")
    with Worker(own, "dispatch").back() as (socket, welcome):
        assert welcome["resumed"] == []
        (task,) = socket.claim()
        assert (task["task_id"], task["epoch"], task["attempt"]) == (made["task_id"], 2, 1)
    assert "attempts_history" not in own.task(made["task_id"])


def test_a_lost_start_is_sent_again(own: Running) -> None:
    own.submit("k")
    worker = Worker(own, "start")
    with worker.back() as (socket, welcome):
        assert [item["phase"] for item in welcome["resumed"]] == ["reserved"]
        started = socket.ask("start", **worker.held[0])
        assert (started["attempt"], started.get("repeated")) == (1, None)


def test_a_lost_started_is_authority_at_resume(own: Running) -> None:
    own.submit("k")
    worker = Worker(own, "started")
    with worker.back() as (socket, welcome):
        assert [(item["phase"], item["attempt"]) for item in welcome["resumed"]] == [("started", 1)]
        started = socket.ask("start", **worker.held[0])
        assert (started["attempt"], started["repeated"]) == (1, True)
        assert socket.ask("finish", **worker.held[0], outcome="success")["state"] == "SUCCEEDED"


def test_a_lost_finish_is_sent_again(own: Running) -> None:
    made = own.submit("k")
    worker = Worker(own, "finish")
    with worker.back() as (socket, welcome):
        assert [item["phase"] for item in welcome["resumed"]] == ["started"]
        finished = socket.ask("finish", **worker.held[0], outcome="success", result=1)
        assert (finished["state"], finished.get("repeated")) == ("SUCCEEDED", None)
    assert own.task(made["task_id"])["attempt"] == 1


def test_a_lost_finished_is_answered_again(own: Running) -> None:
    made = own.submit("k")
    worker = Worker(own, "finished")
    with worker.back() as (socket, welcome):
        assert welcome["lost"] == worker.held
        finished = socket.ask("finish", **worker.held[0], outcome="success", result=1)
        assert (finished["state"], finished["repeated"]) == ("SUCCEEDED", True)
        assert socket.ask("finish", **worker.held[0], outcome="success", result=2)["code"] == "ALREADY_SETTLED"
    assert own.task(made["task_id"])["result"] == 1


def test_a_handler_goes_on_while_the_line_is_gone(own: Running) -> None:
    made = own.submit("k")
    with Socket(own) as socket:
        session = socket.hello()["session_id"]
        task = token(socket.take())
    with Socket(own) as socket:
        socket.hello(resume={"session_id": session, "deliveries": [task]})
        assert socket.ask("renew", items=[task])["lost"] == []
        assert socket.ask("finish", **task, outcome="success")["state"] == "SUCCEEDED"
    assert own.task(made["task_id"])["attempt"] == 1


def test_a_worker_silent_beyond_its_lease_is_swept_and_its_finish_is_too_late(own: Running) -> None:
    made = own.submit("k")
    with Socket(own) as socket:
        socket.hello()
        task = token(socket.take())
        end_lease(own, made["task_id"])
        assert socket.ask("finish", **task, outcome="success")["code"] == "LEASE_LOST"
    seen = own.task(made["task_id"])
    assert seen["state"] == "QUEUED"
    assert [attempt["outcome"] for attempt in seen["attempts_history"]] == ["lease_expired"]


def test_a_reservation_that_ends_blames_nobody(own: Running) -> None:
    made = own.submit("k", max_attempts=1)
    with Socket(own) as socket:
        socket.hello()
        (task,) = socket.claim()
        end_lease(own, made["task_id"])
        assert socket.ask("start", **token(task))["code"] == "LEASE_LOST"
        (again,) = socket.claim()
        assert (again["epoch"], again["attempt"]) == (2, 1)


def end_lease(own: Running, task_id: str) -> None:
    """Its time is over, and the sweeper comes."""
    with own.database.write() as connection:
        connection.exec_driver_sql("UPDATE taskmq_tasks SET due_at=1 WHERE id=? AND state=2", (task_id,))
    own.store.maintain(Maintain())
