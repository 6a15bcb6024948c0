"""What holds for every request: which check answers first, what limits say, what others may not see."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from taskmq.client import Client
from taskmq.server.permissions import Grant
from tests.server.kit import Running, Socket, running, token
from tests.server.test_failures import faulty
from tests.server.test_http import JSON, TASK, error

KEY = {"Idempotency-Key": "k"}


def test_the_first_failing_check_answers(tmp_path: Path) -> None:
    """404 path, 405, 401, 403 scope, 429, 415, 400, 404 resource, 403 queue, 412, 409."""
    with running(tmp_path, request_rate=0.001, request_burst=20) as own:
        reader, _ = own.grant(Grant("tasks:read"))
        other = own.http.post("/v1/queues", json={"name": "other"}).json()["data"]["queue_id"]
        made = own.submit("k", priority=1)
        queue = f"/v1/queues/{made['queue_id']}"
        limited, _ = own.grant(Grant("queues:manage", [other]), Grant("tasks:submit", [other]))
        bad = {"content": b"{", "headers": {"Content-Type": "text/plain"}}
        with own.client(None) as nobody, own.client(reader) as without, own.client(limited) as elsewhere:
            assert error(nobody.put("/v9", **bad))[0] == 404
            assert error(nobody.put("/v1/tasks", **bad))[0] == 405
            assert error(nobody.post("/v1/tasks", **bad))[0] == 401
            assert error(without.post("/v1/tasks", **bad))[0] == 403
            assert error(own.http.post("/v1/tasks", **bad))[0] == 415
            assert error(own.http.post("/v1/tasks", content=b"{", headers=JSON))[0] == 400
            assert error(own.http.patch(f"/v1/queues/{'0' * 32}", content=b"{", headers=JSON))[0] == 400
            stale = {**JSON, "If-Match": '"9"'}
            assert error(own.http.patch(f"/v1/queues/{'0' * 32}", json={"order": "strict"}, headers=stale))[0] == 404
            assert error(elsewhere.patch(queue, json={"order": "strict"}, headers=stale))[0] == 403
            assert error(own.http.patch(queue, json={"order": "strict"}, headers=stale))[0] == 412
            assert error(own.http.patch(queue, json={"order": "strict"}))[0] == 409
            assert error(own.http.delete(queue, headers={"If-Match": '"9"'}))[0] == 412
            assert error(elsewhere.post("/v1/tasks", json=TASK, headers=KEY))[0] == 403
            nowhere = {**TASK, "queue": "nowhere"}
            assert error(elsewhere.post("/v1/tasks", json=nowhere, headers=KEY)) == (404, "NOT_FOUND", None)
            while (answer := own.http.post("/v1/tasks", **bad)).status_code == 415:
                pass
            assert error(answer)[:2] == (429, "RATE_LIMITED")
            details = answer.json()["error"]["details"]
            assert (details["limit"], details["max"]) == ("token.request_rate", 0)
            assert int(answer.headers["Retry-After"]) >= details["retry_after_ms"] / 1000 > 0


def test_metrics_are_for_this_machine_or_the_operator(tmp_path: Path) -> None:
    with running(tmp_path, metrics_token="m" * 20, trusted_proxies=("127.0.0.1",)) as own:
        away = {"X-Forwarded-For": "203.0.113.7"}
        with own.client(None) as http:
            assert http.get("/metrics").status_code == 200
            assert error(http.get("/metrics", headers=away))[:2] == (401, "UNAUTHENTICATED")
            wrong = {**away, "Authorization": f"Bearer {own.token}"}
            assert http.get("/metrics", headers=wrong).status_code == 401
            right = {**away, "Authorization": "Bearer " + "m" * 20}
            assert http.get("/metrics", headers=right).status_code == 200


def test_a_node_that_drains_is_not_ready_and_takes_nothing(alone: Running) -> None:
    alone.drain(0.0)
    ready = alone.http.get("/readyz")
    assert (ready.status_code, ready.json()["data"]["checks"]["pool"]) == (503, False)
    assert alone.http.get("/healthz").status_code == 200
    refused = alone.http.post("/v1/tasks", json=TASK, headers=KEY)
    assert error(refused)[:2] == (503, "UNAVAILABLE")
    assert refused.json()["error"]["details"]["outcome"] == "not_applied"
    with pytest.raises(InvalidStatus) as caught:
        Socket(alone)
    assert caught.value.response.status_code == 503


def test_what_another_namespace_has_is_not_there(server: Running) -> None:
    secret, _ = server.grant(namespace="another", application="app")
    made = server.submit("theirs")
    with server.client(secret) as http:
        for method, path in (
            ("GET", f"/v1/tasks/{made['task_id']}"),
            ("GET", f"/v1/tasks/{made['task_id']}/why"),
            ("POST", f"/v1/tasks/{made['task_id']}/cancel"),
            ("POST", f"/v1/tasks/{made['task_id']}/replay"),
            ("GET", f"/v1/queues/{made['queue_id']}"),
            ("DELETE", f"/v1/queues/{made['queue_id']}"),
            ("POST", f"/v1/queues/{made['queue_id']}/pause"),
            ("GET", f"/v1/queues/{made['queue_id']}/partitions"),
        ):
            assert error(http.request(method, path))[:2] == (404, "NOT_FOUND"), path
        body = {"queue_id": made["queue_id"], "handler": "h"}
        assert error(http.post("/v1/tasks", json=body, headers=KEY))[:2] == (404, "NOT_FOUND")
        assert http.get("/v1/tasks").json()["data"]["items"] == []
        assert http.get("/v1/tasks", params={"queue_id": made["queue_id"]}).json()["data"]["items"] == []


def test_a_writing_call_is_repeated_while_the_store_is_away(own: Running) -> None:
    with Client(own.url, own.credentials()) as api, faulty(own) as store:
        store.fail("publish")
        healing = threading.Thread(target=lambda: (store.faults.wait(1), store.heal()))
        healing.start()
        task = api.submit_task("k", queue="initial", handler="h")
        healing.join()
        assert (task.state, task.duplicate) == ("QUEUED", False)


# ── what ends an execution that nobody finishes ──


def test_an_attempt_beyond_its_timeout_ends_as_a_retry_would(own: Running) -> None:
    made = own.submit("k", timeout_ms=1, retry={"backoff": "fixed", "base_ms": 60_000, "jitter": False})
    with Socket(own) as worker:
        worker.hello()
        task = worker.take()
        time.sleep(0.005)
        renewed = worker.ask("renew", items=[token(task)])
        assert renewed["cancel"] == [{**token(task), "reason": "timeout"}]
        assert renewed["lost"] == [token(task)]
        assert worker.ask("finish", **token(task), outcome="success")["code"] in ("ALREADY_SETTLED", "LEASE_LOST")
    seen = own.task(made["task_id"])
    assert seen["state"] == "RETRYING"
    assert seen["attempts_history"][0]["error"]["type"] == "Timeout"


def test_a_task_beyond_its_deadline_is_expired(own: Running) -> None:
    made = own.submit("k", deadline_ms=300)
    with Socket(own) as worker:
        worker.hello()
        task = worker.take()
        assert 0 <= task["deadline_in_ms"] <= 300
        assert own.task(made["task_id"], 5000)["state"] == "EXPIRED"
        assert worker.ask("finish", **token(task), outcome="success")["code"] == "LEASE_LOST"


def test_progress_is_answered_like_a_renewal(own: Running, worker: Socket) -> None:
    own.submit("k")
    task = worker.take()
    for done in (1, 2):  # the second one within a second: merged, and answered all the same
        reply = worker.ask("progress", **token(task), done=done, total=2, note="half")
        assert (reply["type"], reply["lost"]) == ("renewed", [])
    (info,) = own.store.get([task["task_id"]])
    assert info is not None
    assert info.progress is not None
    assert (info.progress.done, info.progress.total, info.progress.note) == (1, 2, "half")


@pytest.mark.parametrize(
    ("kind", "fields", "place"),
    [
        ("claim", {"queues": [], "n": 1}, "queues"),
        ("claim", {"queues": ["initial"] * 65, "n": 1}, "queues"),
        ("claim", {"queues": ["initial"], "n": 0}, "n"),
        ("claim", {"queues": ["initial"], "n": 101}, "n"),
        ("claim", {"queues": ["initial"], "n": True}, "n"),
        ("claim", {"queues": ["initial"], "n": 1.0}, "n"),
        ("claim", {"queues": ["in\nitial"], "n": 1}, "queues[0]"),
        ("start", {"items": []}, "items"),
        ("start", {"task_id": "x", "epoch": 1}, "task_id"),
        ("start", {"task_id": "0" * 32}, "epoch"),
        ("finish", {"task_id": "0" * 32, "epoch": 1}, "outcome"),
        ("finish", {"task_id": "0" * 32, "epoch": 1, "outcome": "success", "delay_ms": 1}, "delay_ms"),
        ("finish", {"task_id": "0" * 32, "epoch": 1, "outcome": "retry", "reason": "x" * 257}, "reason"),
        ("release", {"items": [{"task_id": "0" * 32, "epoch": 0}]}, "items[0].epoch"),
        ("nonsense", {}, "type"),
    ],
)
def test_bad_messages_are_refused_with_their_place(
    server: Running, kind: str, fields: dict[str, Any], place: str
) -> None:
    with Socket(server) as worker:
        worker.hello()
        reply = worker.ask(kind, **fields)
        assert (reply["type"], reply["code"], reply["field"]) == ("error", "INVALID_ARGUMENT", place)
        assert worker.ask("renew", items=[])["type"] == "renewed"


def test_messages_are_as_strict_as_bodies(server: Running) -> None:
    with Socket(server) as worker:
        worker.hello()
        for text in (
            '{"type":"renew","ref":1,"ref":2,"items":[]}',
            '{"type":"renew","ref":1,"items":[],"x\\u0041":1}',
            '{"type":"renew","ref":NaN,"items":[]}',
            '{"type":"renew","ref":3,"items":' + "[" * 1000 + "]" * 1000 + "}",
            '{"type":"renew","ref":' + "9" * 5000 + ',"items":[]}',
            "[]",
            "",
        ):
            worker.link.send(text)
            assert worker.hear()["code"] == "INVALID_ARGUMENT"
        worker.ref = 10
        assert worker.ask("renew", items=[])["type"] == "renewed"
        worker.link.protocol.send_text(b"\xff")
        worker.link.socket.sendall(b"".join(worker.link.protocol.data_to_send()))
        assert worker.closed()[0] == 1007


def test_a_hello_that_cannot_be_read_may_be_said_again(server: Running) -> None:
    with Socket(server) as worker:
        assert worker.hello(capacity=0)["field"] == "capacity"
        assert worker.hello(*[f"h{i}" for i in range(257)])["field"] == "capabilities"
        assert worker.hello()["type"] == "welcome"
    with Socket(server) as worker:
        worker.say(type="hello", protocol=2, worker_id="w", capabilities=[{"handler": "h"}], capacity=1)
        assert worker.hear()["field"] == "protocol"
        assert worker.closed() == (1008, "UNSUPPORTED_PROTOCOL")
