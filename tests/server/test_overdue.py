"""Attempts whose timeout or deadline is over while their worker says nothing."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from taskmq.client import Client, Execution, Worker
from tests.server.kit import Running, Socket, running, token

RETRY = {"backoff": "fixed", "base_ms": 60_000, "jitter": False}


def test_a_timeout_ends_an_attempt_like_a_retry_and_its_worker_is_told(own: Running, worker: Socket) -> None:
    own.submit("k", timeout_ms=100, retry=RETRY)
    task = worker.take()
    assert worker.hear() == {"type": "cancel", **token(task), "reason": "timeout"}
    seen = own.task(task["task_id"])
    assert (seen["state"], seen["attempt"]) == ("RETRYING", 1)
    (attempt,) = seen["attempts_history"]
    assert (attempt["outcome"], attempt["error"]["type"]) == ("retry", "Timeout")
    assert worker.ask("finish", **token(task), outcome="success")["code"] == "ALREADY_SETTLED"


def test_a_deadline_ends_a_task_and_its_worker_is_told(own: Running, worker: Socket) -> None:
    own.submit("k", deadline_ms=300, timeout_ms=60_000)
    task = worker.take()
    assert worker.hear() == {"type": "cancel", **token(task), "reason": "deadline"}
    seen = own.task(task["task_id"])
    assert seen["state"] == "EXPIRED"
    assert "error" not in seen["attempts_history"][0]
    assert worker.ask("finish", **token(task), outcome="success")["code"] == "LEASE_LOST"


@pytest.mark.parametrize(("fields", "state"), [({"timeout_ms": 800}, "RETRYING"), ({"deadline_ms": 800}, "EXPIRED")])
def test_another_node_that_goes_on_with_a_session_knows_its_times(
    tmp_path: Path, fields: dict[str, Any], state: str
) -> None:
    with (
        running(tmp_path) as one,
        running(tmp_path, node="n2") as two,
        Socket(one) as first,
        Socket(two.seen_by(one.token, one.environment)) as second,
    ):
        session = first.hello()["session_id"]
        one.submit("k", retry=RETRY, **fields)
        task = token(first.take())
        first.link.close_socket()
        second.hello(resume={"session_id": session, "deliveries": [task]})  # in time, or too late
        assert second.hear() == {"type": "cancel", **task, "reason": next(iter(fields)).removesuffix("_ms")}
        assert one.task(task["task_id"])["state"] == state


def test_a_slot_whose_task_was_lost_is_not_free_before_its_handler_ends(own: Running) -> None:
    submitted: SimpleQueue[str] = SimpleQueue()
    with Client(own.url, own.credentials()) as api:
        worker = Worker(api, ["initial"], handlers={"quick": lambda _: 1})

        @worker.handler("slow")
        def slow(execution: Execution) -> None:
            assert execution._cancelled.wait(10)
            second = api.submit_task("b", queue="initial", handler="quick")
            assert api.get_task(second.task_id, wait=0.5).attempt == 0
            submitted.put(second.task_id)

        with worker:
            api.submit_task("a", queue="initial", handler="slow", timeout=0.1, max_attempts=1)
            assert api.get_task(submitted.get(timeout=10), wait=10).state == "SUCCEEDED"
