"""The API over HTTP: conventions, idempotency, tasks, queues, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from taskmq.server.auth import Bucket
from taskmq.server.database.tables import environments
from taskmq.server.permissions import MATRIX, SCOPES, Grant
from taskmq.server.table import ROUTES
from tests.server.kit import Running, Socket, token

JSON = {"Content-Type": "application/json"}


def error(response: httpx2.Response) -> tuple[int, str, str | None]:
    content = response.json()["error"]
    assert content["request_id"] == response.headers["request-id"]
    return response.status_code, content["code"], content.get("field")


def post(own: Running, body: Any, key: str | None = "k", **headers: str) -> httpx2.Response:
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    sent = {**JSON, **({} if key is None else {"Idempotency-Key": key}), **headers}
    return own.http.post("/v1/tasks", content=data, headers=sent)


TASK = {"queue": "initial", "handler": "h"}


def test_every_answer_has_the_headers_of_the_contract(own: Running) -> None:
    response = post(own, TASK, **{"Request-Id": "mine-1"})
    assert response.status_code == 201
    assert response.headers["request-id"] == "mine-1"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["taskmq-version"]
    assert response.headers["location"] == f"/v1/tasks/{response.json()['data']['task_id']}"
    assert own.http.get("/healthz", headers={"Request-Id": "no spaces"}).headers["request-id"] != "no spaces"
    head = own.http.head("/v1/tasks")
    assert (head.status_code, head.content) == (200, b"")


def test_one_key_is_one_task(own: Running) -> None:
    first = post(own, {**TASK, "payload": {"a": 1}})
    again = post(own, {"handler": "h", "payload": {"a": 1}, "priority": 0, "retry": {}, "queue": "initial"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["data"]["task_id"] == first.json()["data"]["task_id"]
    other = post(own, {**TASK, "payload": {"a": 1.0}})
    assert error(other)[:2] == (409, "IDEMPOTENCY_CONFLICT")
    assert other.json()["error"]["details"]["task_id"] == first.json()["data"]["task_id"]


def test_fifty_submits_of_one_key_at_once_are_one_task(own: Running) -> None:
    answers: list[httpx2.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(post(own, TASK, "same"))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len({answer.json()["data"]["task_id"] for answer in answers}) == 1


def test_a_late_repeat_still_gets_its_task(own: Running) -> None:
    soon = {**TASK, "expires_ms": 1}
    assert post(own, soon, "soon").status_code == 201
    time.sleep(0.01)
    past = {**TASK, "expires_at": "2020-01-01T00:00:00Z"}
    assert error(post(own, past, "past")) == (400, "INVALID_ARGUMENT", "expires_at")
    assert error(post(own, past, "soon"))[:2] == (409, "IDEMPOTENCY_CONFLICT")
    assert post(own, soon, "soon").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(({**TASK, "priority": p}, "priority") for p in (-1, 10, 3.0, "3", True, None, 10**30)),
        ({**TASK, "surprise": 1}, "surprise"),
        ({"queue": "initial"}, "handler"),
        ({"handler": "h"}, "queue_id"),
        ({**TASK, "queue_id": "0" * 32}, "queue_id"),
        ({**TASK, "delay_ms": 1, "available_at": "2030-01-01T00:00:00Z"}, "delay_ms"),
        ({**TASK, "available_at": "2030-01-01T00:00:00"}, "available_at"),
        ({**TASK, "available_at": "2030-01-01T00:00:60Z"}, "available_at"),
        ({**TASK, "retry": {"base_ms": -1}}, "retry.base_ms"),
        ({**TASK, "partition": "a\n"}, "partition"),
        ({**TASK, "handler": "h\n"}, "handler"),
        ('{"queue":"initial","handler":"h","handler":"g"}', "handler"),
        ('{"queue":"initial","handler":"h","h\\u0061ndler":"g"}', "handler"),
        ('{"queue":"initial","handler":"h","payload":{"x":1,"x":2}}', "x"),
        ('{"queue":"initial","handler":"h","payload":NaN}', None),
        ('{"queue":"initial","handler":"h","payload":1e999}', None),
        ('{"queue":"initial","handler":"h","payload":"\\ud800"}', "payload"),
        (b'{"queue":"initial","handler":"\xff"}', None),
        (b"\xef\xbb\xbf" + json.dumps(TASK).encode(), None),
        ('{"queue":"initial","handler":"h"} x', None),
        ('{"queue":"initial","handler":"h","payload":' + "[" * 1000 + "]" * 1000 + "}", None),
        ('{"queue":"initial","handler":"h","payload":' + "[" * 65 + "]" * 65 + "}", "payload"),
        ('{"queue":"initial","handler":"h","payload":' + "9" * 5000 + "}", None),
        ("[]", None),
        ("", None),
    ],
)  # fmt: skip
def test_bad_bodies_are_refused_with_their_place(server: Running, body: Any, field: str | None) -> None:
    status, code, where = error(post(server, body, "bad"))
    assert (status, code) == (400, "INVALID_ARGUMENT")
    assert where == field
    queue = server.http.get("/v1/queues", params={"name": "initial"}).json()["data"]["items"][0]["queue_id"]
    assert server.store.keyed(queue, ["bad"]) == {}


def test_sixty_four_levels_and_a_4300_digit_integer_pass(own: Running) -> None:
    deep: Any = 0
    for _ in range(64):
        deep = [deep]
    for key, payload in (("deep", deep), ("long", int("9" * 4300))):
        data = post(own, {**TASK, "payload": payload}, key).json()["data"]
        assert own.task(data["task_id"])["payload"] == payload


@pytest.mark.parametrize("key", [None, "", " a", "a ", "a" * 513, "ä"])
def test_keys_are_printable_ascii(server: Running, key: str | None) -> None:
    sent: dict[str, Any] = dict(JSON) if key is None else {**JSON, "Idempotency-Key": key.encode("latin-1")}
    if key in (" a", "a "):
        return  # white space around a header's value is cut off before it reaches anybody
    response = server.http.post("/v1/tasks", content=json.dumps(TASK), headers=sent)
    assert error(response) == (400, "INVALID_ARGUMENT", "header.Idempotency-Key")


def test_types_and_encodings_of_bodies(server: Running) -> None:
    for headers in ({"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}, {"Content-Type": ""}):
        assert error(post(server, TASK, **headers))[:2] == (415, "UNSUPPORTED_MEDIA_TYPE")
    ok = post(server, TASK, "charset", **{"Content-Type": "application/json; charset=UTF-8"})
    assert ok.status_code == 201


def test_bodies_and_payloads_have_a_size(server: Running) -> None:
    big = json.dumps({**TASK, "payload": "x" * 1_048_576})
    assert error(post(server, big))[:2] == (413, "PAYLOAD_TOO_LARGE")
    chunks = iter([big[:600_000].encode(), big[600_000:].encode()])
    chunked = server.http.post("/v1/tasks", content=chunks, headers={**JSON, "Idempotency-Key": "k"})
    assert error(chunked)[:2] == (413, "PAYLOAD_TOO_LARGE")
    assert error(post(server, {**TASK, "payload": "x" * 262_144})) == (413, "PAYLOAD_TOO_LARGE", "payload")
    assert post(server, {**TASK, "payload": "x" * 262_142}, "largest").status_code == 201


def test_unknown_paths_methods_and_tokens(server: Running) -> None:
    assert error(server.http.get("/v2"))[:2] == (404, "NOT_FOUND")
    wrong = server.http.put("/v1/tasks")
    assert error(wrong)[:2] == (405, "METHOD_NOT_ALLOWED")
    assert wrong.headers["allow"] == "GET, HEAD, POST"
    expired, _ = server.grant(Grant("tasks:read"), expires_at=1)
    for bad in (None, "tmq_x", "tmq_" + "0" * 16 + "_" + "a" * 43, server.token[:-1] + "~", expired):
        with server.client(bad) as http:
            response = http.get("/v1/tasks")
            assert error(response)[:2] == (401, "UNAUTHENTICATED")
            assert response.headers["www-authenticate"] == "Bearer"


def test_a_task_of_another_environment_is_not_there(server: Running, own: Running) -> None:
    made = own.submit("k")
    assert error(server.http.get(f"/v1/tasks/{made['task_id']}"))[:2] == (404, "NOT_FOUND")
    assert error(server.http.get(f"/v1/queues/{made['queue_id']}"))[:2] == (404, "NOT_FOUND")
    assert error(server.http.post(f"/v1/tasks/{made['task_id']}/cancel"))[:2] == (404, "NOT_FOUND")
    assert error(server.http.get("/v1/tasks/nonsense"))[:2] == (404, "NOT_FOUND")


def test_a_batch_answers_item_by_item(own: Running) -> None:
    items = [
        {"idempotency_key": "a", **TASK},
        {"idempotency_key": "a", **TASK},
        {"idempotency_key": "a", **TASK, "priority": 1},
        {"idempotency_key": "b", **TASK, "priority": 10},
        {"idempotency_key": "ü", **TASK},
        {"idempotency_key": "c", "handler": "h", "queue": "nowhere"},
        {"idempotency_key": "d", **TASK, "payload": "x" * 300_000},
        7,
    ]
    response = own.http.post("/v1/tasks:batch", json={"items": items})
    assert response.status_code == 200
    answers = response.json()["data"]["items"]
    assert [answer["status"] for answer in answers] == [201, 200, 409, 400, 201, 404, 413, 400]
    assert answers[0]["data"]["task_id"] == answers[1]["data"]["task_id"]
    assert answers[3]["error"]["field"] == "items[3].priority"
    assert "payload" not in answers[0]["data"]
    again = own.http.post("/v1/tasks:batch", json={"items": items[:2]}).json()["data"]["items"]
    assert [answer["status"] for answer in again] == [200, 200]
    assert error(own.http.post("/v1/tasks:batch", json={"items": []}))[:2] == (400, "INVALID_ARGUMENT")
    assert error(own.http.post("/v1/tasks:batch", json={"items": [1] * 1001}))[:2] == (413, "PAYLOAD_TOO_LARGE")


def test_lists_page_newest_first_and_cursors_are_bound(own: Running) -> None:
    ids = [own.submit(f"k{i}", priority=i % 3)["task_id"] for i in range(7)]
    seen, cursor = [], None
    while True:
        query = {"limit": 3, **({} if cursor is None else {"cursor": cursor})}
        page = own.http.get("/v1/tasks", params=query).json()["data"]
        seen += [item["task_id"] for item in page["items"]]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
        last = cursor
    assert seen == ids[::-1]
    assert error(own.http.get("/v1/tasks", params={"cursor": last, "priority": 1}))[2] == "query.cursor"
    assert error(own.http.get("/v1/tasks", params={"cursor": "AAAA"}))[2] == "query.cursor"
    only = own.http.get("/v1/tasks", params={"priority": 2, "state": "QUEUED", "order": "asc"}).json()["data"]["items"]
    assert [item["task_id"] for item in only] == [ids[2], ids[5]]
    for bad in ("0", "-1", "x", "1.5"):
        assert error(own.http.get("/v1/tasks", params={"limit": bad}))[2] == "query.limit"
    assert own.http.get("/v1/tasks", params={"limit": "5000"}).status_code == 200
    assert error(own.http.get("/v1/tasks?limit=1&limit=2"))[2] == "query.limit"


def test_a_task_can_be_waited_for(own: Running) -> None:
    made = own.submit("k")
    began = time.monotonic()
    assert own.task(made["task_id"], 300)["state"] == "QUEUED"
    assert 0.25 < time.monotonic() - began < 2

    def work() -> None:
        with Socket(own) as worker:
            worker.hello()
            worker.ask("finish", **token(worker.take()), outcome="success")

    thread = threading.Thread(target=work)
    thread.start()
    assert own.task(made["task_id"], 20_000)["state"] == "SUCCEEDED"
    thread.join()


def test_cancel_and_replay(own: Running) -> None:
    made = own.submit("k", delay_ms=60_000)
    path = f"/v1/tasks/{made['task_id']}"
    assert made["state"] == "SCHEDULED"
    assert own.http.post(f"{path}/cancel").json()["data"]["state"] == "CANCELLED"
    assert own.http.post(f"{path}/cancel").status_code == 200
    data = own.http.post(f"{path}/replay", json={"expected_replay_count": 0}).json()["data"]
    assert (data["state"], data["replay_count"]) == ("QUEUED", 1)
    again = own.http.post(f"{path}/replay", json={"expected_replay_count": 0})
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert error(own.http.post(f"{path}/replay"))[:2] == (409, "FAILED_PRECONDITION")
    own.http.post(f"{path}/cancel")
    later = own.http.post(f"{path}/replay", json={"available_at": "2099-01-01T00:00:00Z"}).json()["data"]
    assert (later["state"], later["available_at"]) == ("SCHEDULED", "2099-01-01T00:00:00.000000Z")


def test_failed_tasks_of_a_queue_are_replayed_together(own: Running) -> None:
    for i in range(3):
        own.submit(f"k{i}")
    with Socket(own) as worker:
        worker.hello()
        for _ in range(3):
            worker.ask("finish", **token(worker.take()), outcome="dead", reason="no")
    answer = own.http.post("/v1/tasks:replay", json={"queue": "initial", "state": "FAILED", "limit": 2}).json()["data"]
    assert answer == {"replayed": 2, "remaining": 1}


def test_why_names_the_rules(own: Running) -> None:
    made = own.submit("k", delay_ms=60_000)
    own.http.post(f"/v1/queues/{made['queue_id']}/pause")
    holds = own.http.get(f"/v1/tasks/{made['task_id']}/why").json()["data"]["holds"]
    assert [hold["rule"] for hold in holds] == ["not_due", "paused", "no_worker"]
    assert holds[0]["until"] == made["available_at"]


# ── queues ──


def test_queues_are_made_changed_and_deleted(own: Running) -> None:
    body = {"name": "mail", "weight": 3, "start_rate": {"count": 5, "period_ms": 1000}}
    made = own.http.post("/v1/queues", json=body)
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    queue = made.json()["data"]
    assert (queue["order"], queue["start_rate"]["burst"], queue["revision"]) == ("aging", 5, 1)
    assert own.http.post("/v1/queues", json=body).status_code == 200
    assert error(own.http.post("/v1/queues", json={"name": "mail"}))[:2] == (409, "ALREADY_EXISTS")
    path = f"/v1/queues/{queue['queue_id']}"
    changed = own.http.patch(path, json={"weight": 7, "start_rate": None}, headers={"If-Match": '"1"'})
    data = changed.json()["data"]
    assert (data["weight"], data["start_rate"], data["revision"]) == (7, None, 2)
    stale = own.http.patch(path, json={"weight": 8}, headers={"If-Match": '"1"'})
    assert error(stale)[:2] == (412, "PRECONDITION_FAILED")
    assert stale.json()["error"]["details"]["revision"] == 2
    own.submit("k", queue="mail")
    assert error(own.http.patch(path, json={"order": "strict"}))[:2] == (409, "FAILED_PRECONDITION")
    assert error(own.http.delete(path))[:2] == (409, "FAILED_PRECONDITION")
    assert own.http.get(path).json()["data"]["counts"]["queued"] == 1
    assert own.http.post(f"{path}/purge", json={"states": ["QUEUED"]}).json()["data"] == {"cancelled": 1}
    assert own.http.delete(path).json()["data"] == {"queue_id": queue["queue_id"], "deleted": True}
    assert error(own.http.get(path))[:2] == (404, "NOT_FOUND")
    new = own.http.post("/v1/queues", json={"name": "mail"}).json()["data"]
    assert new["queue_id"] != queue["queue_id"]
    assert own.http.get("/v1/tasks", params={"queue_id": queue["queue_id"]}).json()["data"]["items"]


def test_a_paused_queue_gives_nothing(own: Running) -> None:
    made = own.submit("k")
    path = f"/v1/queues/{made['queue_id']}"
    assert own.http.post(f"{path}/pause").json()["data"]["paused"] is True
    with Socket(own) as worker:
        worker.hello()
        assert worker.ask("claim", queues=["initial"], n=1)["reason"] == "paused"
        own.http.post(f"{path}/resume")
        assert len(worker.claim()) == 1


def test_partitions_can_be_looked_at_and_stopped(own: Running) -> None:
    made = own.submit("k", partition="!p")
    path = f"/v1/queues/{made['queue_id']}/partitions"
    (shown,) = own.http.get(path).json()["data"]["items"]
    assert (shown["partition"], shown["ordered"], shown["waiting"], shown["paused"]) == ("!p", True, 1, False)
    assert own.http.post(path, json={"partition": "!p", "action": "pause"}).status_code == 200
    assert own.http.get(path, params={"partition": "!p"}).json()["data"]["items"][0]["paused"] is True
    assert error(own.http.post(path, json={"partition": "!p", "action": "release"}))[:2] == (409, "FAILED_PRECONDITION")
    assert own.http.post(path, json={"partition": "!p", "action": "purge"}).json()["data"]["cancelled"] == 1


# ── permissions ──


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert {route.name for route in ROUTES} == set(MATRIX)
    assert all(scope in SCOPES for row in MATRIX.values() for scope in row)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_opens_exactly_its_routes(server: Running, scope: str) -> None:
    own = server.tenant(f"scope-{scope.replace(':', '-')}")
    made = own.submit("k")
    own.http.close()
    alone, _ = server.grant(Grant(scope), environment=f"scope-{scope.replace(':', '-')}")
    with server.client(alone) as http:
        for route in ROUTES:
            if route.public:
                continue
            path = route.path.replace("{task_id}", made["task_id"]).replace("{queue_id}", made["queue_id"])
            response = http.request(route.method, path, content=b"{", headers=JSON)
            allowed = scope in MATRIX[route.name]
            assert (response.status_code != 403) is allowed, f"{route.name}: {response.text}"


def directory_name(own: Running) -> str:
    """How the environment of these tests is called."""
    with own.database.read() as connection:
        query = select(environments.c.name).where(environments.c.environment_id == own.environment)
        return str(connection.execute(query).scalar_one())


def test_a_scope_for_one_queue_does_not_reach_another(own: Running) -> None:
    made = own.submit("k")
    other = own.http.post("/v1/queues", json={"name": "other"}).json()["data"]["queue_id"]
    name = directory_name(own)
    scopes = ("tasks:submit", "tasks:read", "tasks:manage", "queues:manage")
    limited, _ = own.grant(*(Grant(scope, [other]) for scope in scopes), environment=name)
    with own.client(limited) as http:
        assert error(http.get(f"/v1/tasks/{made['task_id']}"))[:2] == (403, "PERMISSION_DENIED")
        assert error(http.get(f"/v1/queues/{made['queue_id']}"))[:2] == (403, "PERMISSION_DENIED")
        assert http.get("/v1/tasks").json()["data"]["items"] == []
        assert [q["name"] for q in http.get("/v1/queues").json()["data"]["items"]] == ["other"]
        assert error(http.post("/v1/queues", json={"name": "new"}))[:2] == (403, "PERMISSION_DENIED")


def test_a_token_has_a_rate(server: Running) -> None:
    bucket = Bucket(200, 400)
    assert [bucket.take(10.0) for _ in range(400)] == [0.0] * 400
    assert bucket.take(10.0) == pytest.approx(0.005)
    assert bucket.take(10.01) == 0.0


# ── what it says of itself ──


def test_health_readiness_metrics_and_documents(server: Running) -> None:
    assert server.http.get("/readyz").json() == {"data": {"checks": {"store": True, "migrations": True, "pool": True}}}
    assert b"taskmq_http_requests_total" in server.http.get("/metrics").content
    document = server.http.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert {f"{m.upper()} {p}" for p, ms in document["paths"].items() for m in ms} == {r.name for r in ROUTES}
    assert "hello" in json.dumps(server.http.get("/v1/schemas/worker.json").json())
