"""What the contract says in passing: places of faults, bounds of lists, what a history keeps, what a patch merges."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.server.kit import Running, Socket, token
from tests.server.test_http import JSON, error


def batch(own: Running, *items: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"items": [{"queue": "initial", "handler": "h", **item} for item in items]}
    answers: list[dict[str, Any]] = own.http.post("/v1/tasks:batch", json=body).json()["data"]["items"]
    return answers


def test_a_fault_in_a_batch_is_named_with_its_item(own: Running) -> None:
    answers = batch(
        own,
        {"idempotency_key": "a"},
        {"idempotency_key": "b", "priority": 10},
        {"idempotency_key": "c", "delay_ms": 1, "available_at": "2030-01-01T00:00:00Z"},
        {"idempotency_key": "d", "payload": "x" * 300_000},
        {"idempotency_key": "e", "expires_at": "2000-01-01T00:00:00Z"},
    )
    fields = [answer.get("error", {}).get("field") for answer in answers]
    assert fields == [None, "items[1].priority", "items[2].delay_ms", "items[3].payload", "items[4].expires_at"]


@pytest.mark.parametrize("name", ["partition", "resource_key"])
def test_control_characters_are_in_no_key_that_is_asked_for(own: Running, name: str) -> None:
    for bad in ("\0", "a\x7f", "\x85"):
        assert error(own.http.get("/v1/tasks", params={name: bad})) == (400, "INVALID_ARGUMENT", f"query.{name}")
    assert own.http.get("/v1/tasks", params={name: "ż"}).status_code == 200


@pytest.mark.parametrize(("limit", "status"), [("9" * 30, 200), ("0007", 200), ("0", 400), ("-1", 400), ("1.0", 400)])
def test_a_limit_above_a_thousand_is_a_thousand(own: Running, limit: str, status: int) -> None:
    assert own.http.get("/v1/tasks", params={"limit": limit}).status_code == status


def test_the_longest_negative_integer_comes_back(own: Running, worker: Socket) -> None:
    digits = "-" + "9" * 4300
    body = f'{{"queue":"initial","handler":"h","payload":{digits}}}'
    made = own.http.post("/v1/tasks", content=body, headers={**JSON, "Idempotency-Key": "k"})
    assert f'"payload":{digits}' in made.text
    task = worker.take()
    worker.ref += 1
    worker.link.send(
        json.dumps({"type": "finish", "ref": worker.ref, **token(task), "outcome": "success"})[:-1]
        + f',"result":[{digits}]}}'
    )
    assert worker.answer(worker.ref)["state"] == "SUCCEEDED"
    seen = own.http.get(f"/v1/tasks/{task['task_id']}").text
    assert f'"payload":{digits}' in seen
    assert f'"result":[{digits}]' in seen


def test_false_is_a_result_and_none_is_none(own: Running, worker: Socket) -> None:
    own.submit("k")
    end = {**token(worker.take()), "outcome": "success"}
    assert worker.ask("finish", **end, result=False, reason="done")["state"] == "SUCCEEDED"
    assert worker.ask("finish", **end)["code"] == "ALREADY_SETTLED"
    assert worker.ask("finish", **end, result=False)["repeated"] is True


def test_a_refused_finish_of_a_batch_keeps_no_other_from_its_own(own: Running, worker: Socket) -> None:
    for key in ("a", "b", "c"):
        own.submit(key)
    tasks = worker.claim(3)
    worker.ask("start", items=[token(task) for task in tasks])
    ends = [
        {**token(tasks[0]), "outcome": "success", "result": "x" * 300_000},
        {**token(tasks[1]), "outcome": "success", "delay_ms": 1},
        {**token(tasks[2]), "outcome": "success"},
    ]
    large, wrong, good = worker.ask("finish", items=ends)["items"]
    assert (large["task_id"], large["error"]["code"]) == (tasks[0]["task_id"], "PAYLOAD_TOO_LARGE")
    assert large["error"]["field"] == "items[0].result"
    assert wrong["error"]["field"] == "items[1].delay_ms"
    assert good["state"] == "SUCCEEDED"
    alone = worker.ask("finish", **ends[0])
    assert (alone["task_id"], alone["epoch"], alone["code"]) == (*token(tasks[0]).values(), "PAYLOAD_TOO_LARGE")


def test_the_head_of_an_ordered_partition_is_eligible(own: Running, worker: Socket) -> None:
    later, urgent = own.submit("a", partition="!p"), own.submit("b", partition="!p", priority=9)

    def rules(task: dict[str, Any]) -> list[str]:
        return [hold["rule"] for hold in own.http.get(f"/v1/tasks/{task['task_id']}/why").json()["data"]["holds"]]

    assert (rules(urgent), rules(later)) == ([], ["behind"])
    head = worker.take()
    assert head["task_id"] == urgent["task_id"]
    worker.ask("finish", **token(head), outcome="retry", delay_ms=60_000)
    assert (rules(urgent), rules(later)) == (["not_due", "partition_blocked"], ["partition_blocked", "behind"])


def test_the_last_thirty_two_settles_are_known_again(own: Running, worker: Socket) -> None:
    own.submit("k", max_attempts=100)
    ends = []
    for _ in range(40):
        ends.append({**token(worker.take()), "outcome": "retry", "delay_ms": 0})
        worker.ask("finish", **ends[-1])
    assert Counter(worker.ask("finish", **end).get("repeated") for end in ends[-32:]) == {True: 32}
    assert len(own.task(ends[0]["task_id"])["attempts_history"]) == 32


def test_lists_show_errors_without_tracebacks_and_say_only_what_was_cut(own: Running, worker: Socket) -> None:
    own.submit("k")
    failure = {"type": "a: b", "message": "c: and so on…", "traceback": "tb"}
    made = worker.take()
    worker.ask("finish", **token(made), outcome="dead", error=failure)
    (listed,) = own.http.get("/v1/tasks").json()["data"]["items"]
    assert listed["error"] == {"type": "a: b", "message": "c: and so on…"}
    assert own.task(made["task_id"])["error"] == failure


def test_a_key_without_a_bound_holds_nothing_back(own: Running) -> None:
    own.submit("a", resource_key="r")
    own.submit("b", resource_key="r")
    with Socket(own) as worker:
        worker.hello(resource_keys=True)
        assert len(worker.claim(2)) == 2


def test_a_merge_patch_reaches_into_the_start_rate(own: Running) -> None:
    rate = {"count": 3, "period_ms": 2000}
    made = own.http.post("/v1/queues", json={"name": "q", "start_rate": rate}).json()["data"]

    def patch(value: Any) -> Any:
        answer = own.http.patch(f"/v1/queues/{made['queue_id']}", json={"start_rate": value})
        return error(answer) if answer.status_code != 200 else answer.json()["data"]["start_rate"]

    assert patch({"burst": 9}) == {**rate, "burst": 9}
    assert patch({"burst": None, "count": 4}) == {"count": 4, "period_ms": 2000, "burst": 4}
    assert patch({"count": None}) == (400, "INVALID_ARGUMENT", "start_rate.count")
    assert patch(None) is None
    assert patch({"burst": 9}) == (400, "INVALID_ARGUMENT", "start_rate.count")


def test_a_cancelled_task_says_why_until_it_is_replayed(own: Running, worker: Socket) -> None:
    tasks = [own.submit("waits"), own.submit("runs")]
    worker.take()
    for task in tasks:
        own.http.post(f"/v1/tasks/{task['task_id']}/cancel", json={"reason": "no need"})
    (cancel,) = [worker.hear()]
    worker.ask("finish", task_id=cancel["task_id"], epoch=cancel["epoch"], outcome="retry")
    for task in tasks:
        seen = own.task(task["task_id"])
        assert (seen["state"], seen["reason"]) == ("CANCELLED", "no need")
        assert seen["cancel_requested_at"] <= seen["finished_at"]
        again = own.http.post(f"/v1/tasks/{task['task_id']}/replay").json()["data"]
        own.http.post(f"/v1/tasks/{task['task_id']}/cancel")
        assert (again["state"], "reason" in own.task(task["task_id"])) == ("QUEUED", False)


# ── states that the store calls otherwise ──


def test_a_deferred_task_is_scheduled_wherever_it_is_shown(own: Running, worker: Socket) -> None:
    own.submit("a")
    own.submit("b")
    for outcome in ("defer", "retry"):
        worker.ask("finish", **token(worker.take()), outcome=outcome, delay_ms=60_000)
    shown = {}
    for state in ("SCHEDULED", "RETRYING"):
        (task,) = own.http.get("/v1/tasks", params={"state": state}).json()["data"]["items"]
        assert own.task(task["task_id"])["state"] == task["state"] == state
        shown[state] = task["attempt"]
    assert shown == {"SCHEDULED": 0, "RETRYING": 1}
    queue = own.submit("c")["queue_id"]
    purged = own.http.post(f"/v1/queues/{queue}/purge", json={"states": ["SCHEDULED"]})
    assert purged.json()["data"] == {"cancelled": 1}


def test_what_is_reserved_is_purged_as_queued(own: Running, worker: Socket) -> None:
    made = own.submit("a")
    started = worker.take()
    own.submit("b")
    (reserved,) = worker.claim()
    purged = own.http.post(f"/v1/queues/{made['queue_id']}/purge", json={"states": ["QUEUED"]})
    assert purged.json()["data"] == {"cancelled": 1}
    assert own.task(started["task_id"])["state"] == "RUNNING"
    assert worker.ask("start", **token(reserved))["code"] == "LEASE_LOST"


# ── deleted queues ──


def test_nobody_submits_into_a_deleted_queue_whatever_is_remembered_of_it(own: Running) -> None:
    node = own.application.node
    old = own.http.post("/v1/queues", json={"name": "q"}).json()["data"]
    submission = {"queue": "q", "handler": "h"}
    by_id = {"queue_id": old["queue_id"], "handler": "h"}
    ended = own.http.post("/v1/tasks", json=submission, headers={"Idempotency-Key": "0"}).json()["data"]
    own.http.post(f"/v1/tasks/{ended['task_id']}/cancel")
    known = node.remembered(own.environment, old["queue_id"])
    assert known is not None
    assert own.http.delete(f"/v1/queues/{old['queue_id']}").status_code == 200

    def submit(body: Any) -> Any:
        node.remember(known)  # as another node still does
        return own.http.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k"})

    assert error(submit(submission))[:2] == (404, "NOT_FOUND")
    node.remember(known)
    good, gone = batch(own, {"idempotency_key": "a"}, {"idempotency_key": "b", "queue": "q"})
    assert (good["status"], gone["status"]) == (201, 404)
    new = own.http.post("/v1/queues", json={"name": "q"}).json()["data"]
    assert error(submit(by_id))[:2] == (404, "NOT_FOUND")
    assert submit(submission).json()["data"]["queue_id"] == new["queue_id"]
    node.forget(known)
    assert error(own.http.post(f"/v1/tasks/{ended['task_id']}/replay"))[:2] == (409, "FAILED_PRECONDITION")


def test_a_task_that_came_while_its_queue_was_deleted_takes_the_deletion_back(
    own: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = own.http.post("/v1/queues", json={"name": "q"}).json()["data"]
    known = own.application.node.remembered(own.environment, made["queue_id"])
    assert known is not None
    close = type(own.store).close_queue

    def late(store: Any, queue: str) -> None:
        own.application.node.remember(known)
        own.submit("k", queue="q")
        close(store, queue)

    monkeypatch.setattr(type(own.store), "close_queue", late)
    assert error(own.http.delete(f"/v1/queues/{made['queue_id']}"))[:2] == (409, "FAILED_PRECONDITION")
    assert own.submit("again", queue="q")["queue_id"] == made["queue_id"]
