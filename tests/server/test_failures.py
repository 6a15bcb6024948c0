"""What of the loss-point table no proxy can show: dead sockets, killed nodes, the lost answer to a COMMIT."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from taskmq.testing.faulty import Faulty
from taskmq.transport.base import Store
from taskmq.transport.serving import ServingStore
from taskmq.transport.sql.sqlite.connection import Settings as Url
from tests.server.kit import Running, Socket, running, token
from tests.server.test_command_line import environment, server
from tests.server.test_loss_points import end_lease


@contextmanager
def locked(own: Running) -> Iterator[None]:
    """Nobody can write to the database."""
    path = Url(own.settings.database_url).path
    with closing(sqlite3.connect(path, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        yield
        lock.execute("ROLLBACK")


def test_what_was_claimed_for_a_dead_socket_goes_back_at_once(own: Running) -> None:
    own.submit("k", max_attempts=1)
    with Socket(own) as worker:
        worker.hello()
        with locked(own):
            worker.say(type="claim", ref=1, queues=["initial"], n=1)
            until(lambda: own.application.node.claims.pool.in_flight == 1)
            worker.link.close_socket()
            until(lambda: not own.application.hub.connections)
    with Socket(own) as other:
        other.hello()
        (task,) = other.claim()
        assert (task["epoch"], task["attempt"]) == (2, 1)


def until(holds: Any) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def faulty(own: Running) -> Iterator[Faulty]:
    """The environment's store, which can be told to fail."""
    stores, real = own.application.node.stores, own.store
    wrapped = Faulty(cast(Store, real))
    stores._open[own.environment] = cast(ServingStore, wrapped)
    try:
        yield wrapped
    finally:
        stores._open[own.environment] = real


@pytest.mark.parametrize(
    ("step", "answer"),
    [("start", {"type": "started", "attempt": 1}), ("finish", {"type": "finished", "state": "SUCCEEDED"})],
)
def test_a_step_whose_commit_was_not_answered_is_said_again(own: Running, step: str, answer: dict[str, Any]) -> None:
    made = own.submit("k")
    with Socket(own) as worker, faulty(own) as store:
        worker.hello()
        (task,) = worker.claim()
        fields = token(task)
        if step == "finish":
            worker.ask("start", **fields)
            fields["outcome"] = "success"
        store.lose_answers("steps_of_all")
        lost = worker.ask(step, **fields)
        assert (lost["code"], lost["retryable"], lost["details"]["outcome"]) == ("UNAVAILABLE", True, "unknown")
        store.heal()
        again = worker.ask(step, **fields)
        assert answer.items() <= again.items()
        assert again["repeated"] is True
    assert own.task(made["task_id"])["attempt"] == 1


def test_a_submit_whose_commit_was_not_answered_is_sent_again(own: Running) -> None:
    body = {"queue": "initial", "handler": "h"}
    with faulty(own) as store:
        store.lose_answers("publish")
        lost = own.http.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k"})
        assert lost.status_code == 503
        assert lost.json()["error"]["details"]["outcome"] == "unknown"
        assert int(lost.headers["Retry-After"]) >= 1
        store.heal()
        again = own.http.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k"})
        assert (again.status_code, again.headers["Idempotency-Replayed"]) == (200, "true")
        store.fail("publish")
        refused = own.http.post("/v1/tasks:batch", json={"items": [{**body, "idempotency_key": "l"}]})
        assert (refused.status_code, refused.json()["error"]["details"]["outcome"]) == (503, "not_applied")


def test_a_killed_node_loses_nothing(tmp_path: Path) -> None:
    """Its started task goes on elsewhere; what was reserved comes back, by resume or by its time, without blame."""
    where = environment(tmp_path)["TASKMQ_DATABASE_URL"]
    with running(tmp_path, database_url=where, node="n2") as own:
        for key in ("started", "unheard", "orphan"):
            own.submit(key, max_attempts=1)
        with (
            server(tmp_path, killed=True) as (process, url),
            Socket(own, url=url) as worker,
            Socket(own, url=url) as gone,
        ):
            session = worker.hello()["session_id"]
            gone.hello()
            task = worker.take()
            (unheard,) = worker.claim()
            (orphan,) = gone.claim()
            process.kill()
            process.wait(10)
        with Socket(own) as worker:
            welcome = worker.hello(resume={"session_id": session, "deliveries": [token(task)]})
            assert [item["phase"] for item in welcome["resumed"]] == ["started"]
            assert worker.ask("finish", **token(task), outcome="success")["state"] == "SUCCEEDED"
            end_lease(own, orphan["task_id"])
            back = {t["task_id"]: (t["epoch"], t["attempt"]) for t in worker.claim(5)}
        assert back == {unheard["task_id"]: (2, 1), orphan["task_id"]: (2, 1)}
        assert own.task(task["task_id"])["attempt"] == 1
