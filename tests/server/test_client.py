"""The client and its workers against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from taskmq.client import (
    AsyncClient,
    AsyncWorker,
    Client,
    ConfigError,
    Credentials,
    Dead,
    Execution,
    IdempotencyConflict,
    InvalidArgument,
    NotFound,
    PayloadTooLarge,
    RetryLater,
    RevisionConflict,
    TransportUnavailable,
    Unauthenticated,
    Worker,
    calls,
)
from tests.server.kit import LOOPBACK, Running

NOBODY = Credentials(token="tmq_" + "0" * 16 + "_" + "a" * 43)


def client(own: Running, **options: Any) -> Client:
    return Client(own.url, own.credentials(), **options)


def test_a_task_is_submitted_found_and_cancelled(own: Running) -> None:
    with client(own) as api:
        task = api.submit_task("k", queue="initial", handler="h", payload={"n": 2**70}, priority=3, delay=60)
        assert (task.state, task.priority, task.duplicate) == ("SCHEDULED", 3, False)
        assert api.submit_task("k", queue="initial", handler="h", payload={"n": 2**70}, priority=3, delay=60).duplicate
        with pytest.raises(IdempotencyConflict) as conflict:
            api.submit_task("k", queue="initial", handler="h")
        assert (conflict.value.task_id, conflict.value.status) == (task.task_id, 409)
        assert api.get_task(task.task_id).payload == {"n": 2**70}
        assert [found.task_id for found in api.list_tasks(queue="initial")] == [task.task_id]
        assert api.why_task(task.task_id)[0].rule == "not_due"
        assert api.cancel_task(task.task_id).state == "CANCELLED"
        assert api.replay_task(task.task_id, expected_replay_count=0).replay_count == 1
        with pytest.raises(NotFound):
            api.get_task("0" * 32)


def test_many_tasks_are_submitted_in_batches(own: Running) -> None:
    items = [{"key": f"k{i}", "queue": "initial", "handler": "h", "priority": 10 * (i == 3)} for i in range(5)]
    with client(own) as api:
        with pytest.raises(InvalidArgument):
            api.submit_tasks(items)
        items[3] = {"key": "big", "queue": "initial", "handler": "h", "payload": "x" * 300_000}
        answers = api.submit_tasks(items)
    assert isinstance(answers[3], PayloadTooLarge)
    assert sum(not isinstance(answer, Exception) for answer in answers) == 4


def test_queues_are_managed(own: Running) -> None:
    with client(own) as api:
        queue = api.create_queue("mail", weight=3)
        assert api.create_queue("mail", weight=3).queue_id == queue.queue_id
        changed = api.update_queue(queue.queue_id, if_match=queue.revision, weight=None, max_running=5)
        assert (changed.weight, changed.max_running) == (1, 5)
        with pytest.raises(RevisionConflict):
            api.update_queue(queue.queue_id, if_match=1, weight=2)
        assert api.pause_queue(queue.queue_id).paused
        assert not api.resume_queue(queue.queue_id).paused
        assert {q.name for q in api.list_queues()} == {"initial", "mail"}
        assert api.purge_queue(queue.queue_id) == 0
        assert list(api.list_partitions(queue.queue_id)) == []
        assert api.delete_queue(queue.queue_id)


@pytest.mark.parametrize("priority", [True, 1.0, "1", 10, -1, None])
def test_wrong_types_fail_before_anything_is_sent(priority: Any) -> None:
    token = "tmq_" + "0" * 16 + "_" + "a" * 43
    with Client(f"http://{LOOPBACK}:9", Credentials(token=token)) as api, pytest.raises(InvalidArgument):
        api.submit_task("k", queue="q", handler="h", priority=priority)


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 5} for name in ("queue", "handler", "handler_version", "partition", "resource_key", "retry")),
        *({"max_attempts": value} for value in ("3", 2.0, True)),
        {"payload": {"a": [{1: 2}]}}, {"payload": "\ud800"}, {"delay": -1}, {"timeout": True}, {"available_at": "now"},
        *({"key": key} for key in (None, 5, "", "é", "a ", " a", "a\nb", "x" * 513)),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_right_is_not_sent(wrong: dict[str, Any]) -> None:
    with Client(f"http://{LOOPBACK}:9", NOBODY) as api, pytest.raises(InvalidArgument):
        api.submit_task(**{"key": "k", "queue": "q", "handler": "h", **wrong})


def test_what_is_as_it_is_anyway_is_not_sent() -> None:
    retry = {"backoff": "exponential", "base": 1, "cap": 300, "jitter": True}
    task = {"priority": 0, "payload": None, "max_attempts": 3, "handler_version": "v1", "payload_version": "v1"}
    call = calls.submit_task("k", "h", {"queue": "q", **task, "delay": 0, "retention": 604_800, "retry": retry})
    assert json.loads(call.body or b"") == {"queue": "q", "handler": "h"}
    queue = {"order": "aging", "aging_step": 30, "weight": 1, "paused": False, "on_dead": "continue", "lease": 30}
    assert json.loads(calls.create_queue("q", queue).body or b"") == {"name": "q"}
    assert json.loads(calls.update_queue("0" * 32, None, {"weight": 1}).body or b"") == {"weight": 1}


def test_naive_times_and_what_json_has_not_are_refused() -> None:
    token = "tmq_" + "0" * 16 + "_" + "a" * 43
    with Client(f"http://{LOOPBACK}:9", Credentials(token=token)) as api:
        with pytest.raises(InvalidArgument):
            api.submit_task("k", queue="q", handler="h", available_at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidArgument):
            api.submit_task("k", queue="q", handler="h", payload={1, 2})
        with pytest.raises(TransportUnavailable):
            Client(api.url, api.credentials, timeout=0.3).submit_task(
                "k", queue="q", handler="h", available_at=datetime(2030, 1, 1, tzinfo=UTC)
            )


def test_configuration_is_checked_before_anything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "tmq_" + "0" * 16 + "_" + "a" * 43
    good = Credentials(token=token)
    assert token not in repr(good)
    for name in ("TASKMQ_URL", "TASKMQ_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    for url, credentials in (
        (None, good),
        ("sqlite:///t.db", good),
        ("http://example.org", good),
        ("http://127.0.0.1:1", None),
        ("http://127.0.0.1:1", str(tmp_path / "missing")),
    ):
        with pytest.raises(ConfigError):
            Client(url, credentials)
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"format": 1, "token": token, "url": "http://127.0.0.1:1", "later": 1}))
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Client(credentials=str(file))
    file.chmod(0o600)
    Client(credentials=str(file)).close()
    os.symlink(file, tmp_path / "link")
    with pytest.raises(ConfigError, match="link"):
        Client(credentials=str(tmp_path / "link"))


def test_a_worker_runs_retries_and_gives_up(own: Running) -> None:
    calls: list[int] = []
    with client(own) as api:
        worker = Worker(api, ["initial"], capacity=3)

        @worker.handler("double")
        def double(execution: Execution) -> Any:
            return execution.payload * 2

        @worker.handler("flaky")
        def flaky(execution: Execution) -> Any:
            calls.append(execution.task.attempt)
            if execution.task.attempt == 1:
                raise RetryLater(0)
            raise Dead("enough")

        with worker:
            good = api.submit_task("a", queue="initial", handler="double", payload=21)
            bad = api.submit_task("b", queue="initial", handler="flaky")
            assert api.get_task(good.task_id, wait=10).result == 42
            ended = api.get_task(bad.task_id, wait=10)
            assert (ended.state, ended.reason, calls) == ("FAILED", "enough", [1, 2])
        assert worker.drain(0.0)


def test_a_worker_keeps_its_session_over_a_broken_line(own: Running) -> None:
    running, go_on = threading.Event(), threading.Event()
    with client(own) as api:
        worker = Worker(api, ["initial"])

        @worker.handler("slow")
        def slow(execution: Execution) -> Any:
            running.set()
            assert go_on.wait(20)
            return execution.task.epoch

        with worker:
            task = api.submit_task("a", queue="initial", handler="slow")
            assert running.wait(10)
            link = worker._link.socket
            assert link is not None
            link.close_socket()
            go_on.set()
            ended = api.get_task(task.task_id, wait=15)
            assert (ended.state, ended.attempt, ended.result) == ("SUCCEEDED", 1, 1)


def test_a_worker_with_a_wrong_token_stops(own: Running) -> None:
    token = "tmq_" + "0" * 16 + "_" + "a" * 43
    with Client(own.url, Credentials(token=token)) as api:
        worker = Worker(api, ["initial"], handlers={"h": lambda e: None})
        with pytest.raises(Unauthenticated):
            api.get_task("0" * 32)
        worker.start()
        assert worker._stopping.wait(10)
        worker.stop()
        assert isinstance(worker._failure, Unauthenticated)


def test_the_asynchronous_twins_do_the_same(own: Running) -> None:
    async def scenario() -> None:
        async with AsyncClient(own.url, own.credentials()) as api:
            worker = AsyncWorker(api, ["initial"], capacity=2)

            @worker.handler("h")
            async def h(execution: Execution) -> Any:
                await asyncio.sleep(0)
                return [execution.payload]

            async with worker:
                task = await api.submit_task("k", queue="initial", handler="h", payload=1)
                assert (await api.get_task(task.task_id, wait=10)).result == [1]
            assert [found.state async for found in api.list_tasks()] == ["SUCCEEDED"]

    asyncio.run(scenario())
