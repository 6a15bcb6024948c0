"""The worker protocol over a real socket: sequence, repetition, resume, and what ends a connection."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from taskmq.server.permissions import Grant
from tests.server.kit import Running, Socket, token


def test_a_task_goes_from_claim_to_finish_and_every_digit_comes_back(own: Running, worker: Socket) -> None:
    made = own.submit("k", payload={"n": 9007199254740993, "f": 1.0, "big": 10**40}, priority=9)
    (task,) = worker.claim()
    assert list(task)[:9] == [
        *("task_id", "epoch", "reserve_ms", "queue_id", "queue", "handler", "handler_version", "payload_version"),
        "payload",
    ]
    assert task["payload"] == {"n": 9007199254740993, "f": 1.0, "big": 10**40}
    assert (task["attempt"], task["priority"], task["reserve_ms"]) == (1, 9, 10_000)
    seen = own.task(made["task_id"])
    assert (seen["state"], seen["reserved_by"], seen["attempt"]) == ("QUEUED", "w-7", 0)
    started = worker.ask("start", **token(task))
    assert (started["type"], started["attempt"]) == ("started", 1)
    assert 29_000 < started["lease_ms"] <= 30_000
    assert own.task(made["task_id"])["state"] == "RUNNING"
    renewed = worker.ask("renew", items=[token(task)])
    assert (renewed["type"], renewed["lost"], renewed["cancel"]) == ("renewed", [], [])
    finished = worker.ask("finish", **token(task), outcome="success", result={"n": 9007199254740993})
    assert (finished["type"], finished["state"]) == ("finished", "SUCCEEDED")
    done = own.task(made["task_id"], 5000)
    assert (done["state"], done["result"], done["attempt"]) == ("SUCCEEDED", {"n": 9007199254740993}, 1)


def test_repeated_steps_have_the_answers_of_the_table(own: Running, worker: Socket) -> None:
    own.submit("k")
    task = worker.take()
    again = worker.ask("start", **token(task))
    assert (again["type"], again["attempt"], again["repeated"]) == ("started", 1, True)
    assert worker.ask("start", task_id=task["task_id"], epoch=7)["code"] == "LEASE_LOST"
    end = {**token(task), "outcome": "retry", "delay_ms": 60_000, "error": {"type": "E", "message": "m"}}
    first = worker.ask("finish", **end)
    assert first["state"] == "RETRYING"
    repeated = worker.ask("finish", **end)
    assert (repeated["type"], repeated["state"], repeated["repeated"]) == ("finished", "RETRYING", True)
    other = worker.ask("finish", **token(task), outcome="success")
    assert (other["code"], other["details"]["outcome"]) == ("ALREADY_SETTLED", "retry")
    assert worker.ask("finish", task_id=task["task_id"], epoch=9, outcome="success")["code"] == "LEASE_LOST"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"outcome": "success"}, "SUCCEEDED"),
        ({"outcome": "retry"}, "RETRYING"),
        ({"outcome": "defer", "delay_ms": 5000}, "SCHEDULED"),
        ({"outcome": "dead", "reason": "no"}, "FAILED"),
    ],
)
def test_each_outcome_leads_to_its_state(server: Running, outcome: dict[str, Any], state: str) -> None:
    made = server.submit(f"outcome-{state}", handler=state)
    with Socket(server) as worker:
        worker.hello(state)
        task = worker.take()
        assert worker.ask("finish", **token(task), **outcome)["state"] == state
        again = worker.ask("finish", **token(task), **outcome)
        assert (again["state"], again["repeated"]) == (state, True)
    seen = server.task(made["task_id"])
    assert seen["attempt"] == (0 if state == "SCHEDULED" else 1)


def test_the_last_attempt_ends_a_task_that_retries(own: Running, worker: Socket) -> None:
    made = own.submit("k", max_attempts=1)
    task = worker.take()
    error = {"type": "OSError", "message": "x" * 5000, "traceback": "t"}
    assert worker.ask("finish", **token(task), outcome="retry", error=error)["state"] == "FAILED"
    seen = own.task(made["task_id"])
    assert seen["error"]["type"] == "OSError"
    assert len(seen["error"]["message"].encode()) <= 2048
    assert seen["error"]["truncated"] is True
    assert seen["attempts_history"][0]["worker_id"] == "w-7"


def test_an_empty_claim_is_answered_within_about_a_second(own: Running, worker: Socket) -> None:
    began = time.monotonic()
    reply = worker.ask("claim", queues=["initial"], n=1)
    assert (reply["type"], reply["reason"]) == ("empty", "no_task")
    assert 0.5 < time.monotonic() - began < 2.5


def test_a_waiting_claim_hears_of_a_task_at_once(own: Running, worker: Socket) -> None:
    """Not when it ends: a claim waits for many seconds. How soon is a figure of the benchmarks."""
    for i in range(3):
        submitted: list[float] = []

        def submit(i: int = i, submitted: list[float] = submitted) -> None:
            time.sleep(0.2)
            own.submit(f"k{i}")
            submitted.append(time.monotonic())

        thread = threading.Thread(target=submit)
        thread.start()
        assert len(worker.claim()) == 1
        thread.join()
        assert time.monotonic() - submitted[0] < 5


def test_claims_name_exact_capabilities_and_key_support(own: Running, worker: Socket) -> None:
    own.submit("other", handler="g")
    own.submit("version", handler_version="v2")
    own.submit("keyed", resource_key="r")
    own.submit("mine")
    tasks = worker.claim(5)
    assert [task["handler"] for task in tasks] == ["h"]
    assert "resource_key" not in tasks[0]
    with Socket(own) as other:
        other.say(
            type="hello", protocol=1, worker_id="w2", capacity=5, resource_keys=True,
            capabilities=[{"handler": "h", "handler_version": "v2"}, {"handler": "h"}],
        )  # fmt: skip
        other.hear()
        assert {(t["handler_version"], t.get("resource_key")) for t in other.claim(5)} == {("v2", None), ("v1", "r")}


def test_a_second_claim_and_one_beyond_capacity_are_refused(own: Running, worker: Socket) -> None:
    worker.say(type="claim", ref=1, queues=["initial"], n=1)
    worker.ref = 1
    assert worker.ask("claim", queues=["initial"], n=1)["code"] == "FAILED_PRECONDITION"
    assert worker.ask("claim", queues=["initial"], n=6)["code"] in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")


def test_a_full_worker_gets_no_more(own: Running) -> None:
    own.submit("a")
    own.submit("b")
    with Socket(own) as worker:
        worker.hello(capacity=1)
        task = worker.take()
        assert worker.ask("claim", queues=["initial"], n=1)["reason"] == "no_capacity"
        worker.ask("finish", **token(task), outcome="success")
        assert len(worker.claim()) == 1


def test_released_tasks_are_back_at_once_without_an_attempt(own: Running, worker: Socket) -> None:
    made = own.submit("k")
    (task,) = worker.claim()
    reply = worker.ask("release", items=[token(task), {"task_id": "0" * 32, "epoch": 1}])
    assert reply["items"] == [token(task)]
    assert reply["unknown"] == [{"task_id": "0" * 32, "epoch": 1}]
    (again,) = worker.claim()
    assert (again["task_id"], again["epoch"], again["attempt"]) == (made["task_id"], 2, 1)


def test_a_reservation_can_be_cancelled_and_its_start_is_lost(own: Running, worker: Socket) -> None:
    made = own.submit("k")
    (task,) = worker.claim()
    reply = own.http.post(f"/v1/tasks/{made['task_id']}/cancel")
    assert reply.json()["data"]["state"] == "CANCELLED"
    assert worker.ask("start", **token(task))["code"] == "LEASE_LOST"


def test_a_running_task_is_asked_to_stop(own: Running, worker: Socket) -> None:
    made = own.submit("k")
    task = worker.take()
    data = own.http.post(f"/v1/tasks/{made['task_id']}/cancel", json={"reason": "no"}).json()["data"]
    assert data["state"] == "RUNNING"
    assert data["cancel_requested_at"] >= data["started_at"]
    assert worker.hear() == {"type": "cancel", **token(task), "reason": "user"}
    assert worker.ask("renew", items=[token(task)])["cancel"] == [{**token(task), "reason": "user"}]
    assert worker.ask("finish", **token(task), outcome="retry")["state"] == "CANCELLED"


def test_drain_hands_back_and_says_when_nothing_is_held(own: Running, worker: Socket) -> None:
    own.submit("a")
    own.submit("b")
    task = worker.take()
    worker.claim()
    assert worker.ask("drain")["type"] == "draining"
    ref = worker.ref
    assert worker.ask("claim", queues=["initial"], n=1)["reason"] == "draining"
    worker.ask("finish", **token(task), outcome="success")
    drained = next((m for m in worker.stray if m["type"] == "drained"), None) or worker.hear()
    assert drained == {"type": "drained", "ref": ref}
    with Socket(own) as other:
        other.hello()
        assert len(other.claim()) == 1


def test_an_ordered_run_starts_one_after_another(own: Running, worker: Socket) -> None:
    for i in range(3):
        own.submit(f"k{i}", partition="!p")
    tasks = worker.claim(3)
    assert [task["run"]["pos"] for task in tasks] == [0, 1, 2]
    assert worker.ask("start", **token(tasks[1]))["code"] == "FAILED_PRECONDITION"
    worker.ask("start", **token(tasks[0]))
    reply = worker.ask("finish", **token(tasks[0]), outcome="retry", delay_ms=0)
    assert reply["released"] == [token(tasks[1]), token(tasks[2])]


def test_batches_of_steps_answer_item_by_item(own: Running, worker: Socket) -> None:
    for i in range(3):
        own.submit(f"k{i}")
    tasks = worker.claim(3)
    missing = {"task_id": "0" * 32, "epoch": 1}
    items = worker.ask("start", items=[*map(token, tasks), missing])["items"]
    assert [item.get("attempt") for item in items] == [1, 1, 1, None]
    assert items[3]["error"]["code"] == "LEASE_LOST"
    ends = [{**token(task), "outcome": "success", "result": i} for i, task in enumerate(tasks)]
    assert [item["state"] for item in worker.ask("finish", items=ends)["items"]] == ["SUCCEEDED"] * 3


# ── resume ──


def test_resume_goes_on_with_what_is_named_and_gives_up_the_rest(own: Running) -> None:
    for i in range(4):
        own.submit(f"k{i}")
    with Socket(own) as first:
        session = first.hello()["session_id"]
        tasks = first.claim(4)
        first.ask("start", **token(tasks[0]))
        first.ask("start", **token(tasks[1]))
        named = [token(tasks[0]), token(tasks[2]), {"task_id": "0" * 32, "epoch": 1}]
        with Socket(own) as second:
            welcome = second.hello(resume={"session_id": session, "deliveries": named})
            assert first.closed() == (4001, "SUPERSEDED")
            assert welcome["session_id"] == session
            assert [(r["task_id"], r["phase"]) for r in welcome["resumed"]] == [
                (tasks[0]["task_id"], "started"),
                (tasks[2]["task_id"], "reserved"),
            ]
            assert welcome["lost"] == [{"task_id": "0" * 32, "epoch": 1}]
            assert second.ask("finish", **token(tasks[0]), outcome="success")["state"] == "SUCCEEDED"
            assert second.ask("start", **token(tasks[2]))["type"] == "started"
            assert second.ask("finish", **token(tasks[1]), outcome="success")["code"] == "LEASE_LOST"
            back = own.task(tasks[3]["task_id"])
            assert (back["state"], back["attempt"]) == ("QUEUED", 0)
            expired = own.task(tasks[1]["task_id"])
            assert expired["attempts_history"][0]["outcome"] == "lease_expired"


def test_an_unknown_session_loses_everything(own: Running) -> None:
    item = {"task_id": "1" * 32, "epoch": 1}
    with Socket(own) as worker:
        welcome = worker.hello(resume={"session_id": "2" * 32, "deliveries": [item]})
        assert welcome["session_id"] != "2" * 32
        assert (welcome["resumed"], welcome["lost"]) == ([], [item])


def test_another_session_may_not_touch_a_delivery(own: Running, worker: Socket) -> None:
    own.submit("k")
    task = worker.take()
    with Socket(own) as other:
        other.hello()
        assert other.ask("finish", **token(task), outcome="success")["code"] == "LEASE_LOST"
        assert other.ask("renew", items=[token(task)])["lost"] == [token(task)]


# ── refusals ──


@pytest.mark.parametrize(
    "message",
    [{"type": "claim", "ref": 1, "queues": ["q"], "n": 1}, {"type": "renew", "ref": 1, "items": []}, {"x": 1}],
)
def test_anything_before_hello_ends_the_connection(server: Running, message: dict[str, Any]) -> None:
    with Socket(server) as worker:
        worker.say(**message)
        assert worker.closed()[0] == 1008


def test_a_second_hello_ends_the_connection(server: Running) -> None:
    with Socket(server) as worker:
        worker.hello()
        assert worker.hello()["type"] == "error"
        assert worker.closed()[0] == 1002


def test_binary_and_oversized_frames_end_the_connection(server: Running) -> None:
    with Socket(server) as worker:
        worker.hello()
        worker.link.send(b"{}")
        assert worker.closed()[0] == 1003
    with Socket(server) as worker:
        worker.hello()
        worker.link.send(json.dumps({"type": "renew", "ref": 1, "items": [], "pad": "x" * 1_048_576}))
        assert worker.closed()[0] == 1009


def test_the_tenth_unreadable_message_ends_the_connection(server: Running) -> None:
    with Socket(server) as worker:
        worker.hello()
        for i in range(9):
            assert worker.ask("nonsense")["code"] == "INVALID_ARGUMENT", i
        assert worker.ask("claim", queues=["initial"], n=1, extra=1)["field"] == "extra"
        assert worker.closed() == (1008, "TOO_MANY_ERRORS")


def test_upgrades_are_refused_with_an_envelope(server: Running) -> None:
    reader, _ = server.grant(Grant("tasks:read"))

    def refused(token: str | None, **headers: str) -> tuple[int, str]:
        with pytest.raises(InvalidStatus) as caught:
            Socket(server, token, **headers)
        response = caught.value.response
        assert len(response.headers.get_all("Content-Type")) == 1
        return response.status_code, json.loads(response.body)["error"]["code"]

    assert refused("tmq_" + "0" * 16 + "_" + "a" * 43) == (401, "UNAUTHENTICATED")
    assert refused(reader) == (403, "PERMISSION_DENIED")
    assert refused(server.token, Origin="https://evil.example") == (403, "PERMISSION_DENIED")
    where, sent = (
        f"{server.url.replace('http', 'ws', 1)}/v1/workers/connect",
        {"Authorization": f"Bearer {server.token}"},
    )
    with pytest.raises(InvalidStatus) as caught, connect(where, additional_headers=sent):
        pass
    content = json.loads(caught.value.response.body)["error"]
    assert (caught.value.response.status_code, content["field"]) == (400, "header.Sec-WebSocket-Protocol")


def test_a_token_may_come_with_hello(server: Running) -> None:
    with Socket(server, None) as worker:
        assert worker.hello(token=server.token)["type"] == "welcome"
    with Socket(server, None) as worker:
        assert worker.hello()["code"] == "UNAUTHENTICATED"
        assert worker.closed() == (1008, "UNAUTHENTICATED")


def test_unknown_queues_and_foreign_ones_are_refused(server: Running) -> None:
    queue = server.http.post("/v1/queues", json={"name": "ws-other"}).json()["data"]["queue_id"]
    limited, _ = server.grant(Grant("workers:connect"), Grant("workers:consume", [queue]))
    with Socket(server, limited) as worker:
        worker.hello()
        assert worker.ask("claim", queues=["nowhere"], n=1)["code"] == "NOT_FOUND"
        assert worker.ask("claim", queues=["initial"], n=1)["code"] == "PERMISSION_DENIED"
        assert worker.ask("claim", queues=[queue], n=1)["type"] == "empty"


def test_shutdown_tells_workers_and_closes_with_1012(alone: Running) -> None:
    own, worker = alone, Socket(alone)
    worker.hello()
    own.submit("a")
    own.submit("b")
    started = worker.take()
    (reserved,) = worker.claim()
    own.drain(0.3)
    assert worker.closed() == (1012, "SHUTDOWN")
    assert {"type": "drain", "reason": "shutdown", "grace_ms": 300} in worker.stray
    store = own.store
    handed_back, running = store.get([reserved["task_id"], started["task_id"]])
    assert handed_back is not None
    assert (handed_back.state, handed_back.attempt) == ("QUEUED", 0)
    assert running is not None
    assert running.state == "RUNNING"
