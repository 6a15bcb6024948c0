"""The client's worker: it comes back, renews in time, and no handler can take a slot or a task with it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskmq.client import AsyncClient, AsyncWorker, Client, Dead, Execution, InvalidArgument, PermissionDenied, Worker
from taskmq.client import link as links
from taskmq.errors import TransportUnavailable
from taskmq.server.permissions import Grant
from taskmq.server.workers import steps
from tests.server.kit import LOOPBACK, Running, running


@contextmanager
def working(server: Running, *queues: str, **handlers: Callable[[Execution], Any]) -> Iterator[tuple[Client, Worker]]:
    with Client(server.url, server.credentials()) as api:
        worker = Worker(api, queues or ["initial"], handlers=handlers)
        worker.start()
        yield api, worker
        worker.stop()


def ended(api: Client, handler: str, **fields: Any) -> Any:
    """A task of this handler, submitted and waited for."""
    made = api.submit_task(f"k-{handler}", queue="initial", handler=handler, **fields)
    return api.get_task(made.task_id, wait=15)


def test_a_worker_goes_on_after_a_graceful_restart_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(links, "LONGEST_PAUSE", 0.1)
    with running(tmp_path) as first, working(first, a=lambda _: 1, b=lambda _: 2) as (api, worker):
        assert ended(api, "a").state == "SUCCEEDED"
        first.drain(0.1)
        first.stop()
        with running(tmp_path, http_addr=f"{LOOPBACK}:{first.port}"):
            assert ended(api, "b").result == 2
            assert worker.drain(5)
            assert worker._stopping.wait(5)
            worker.raise_failure()


def test_a_lease_shorter_than_the_heartbeat_is_renewed_in_time(own: Running) -> None:
    own.http.post("/v1/queues", json={"name": "short", "lease_ms": 5000})
    renewed, running_now = threading.Event(), threading.Event()

    def long(execution: Execution) -> int:
        running_now.set()
        assert renewed.wait(3)
        return execution.task.epoch

    with working(own, "short", long=long) as (api, worker):
        send = worker._link.send

        def spy(message: dict[str, Any]) -> int | None:
            if message["type"] == "renew" and message["items"] and running_now.is_set():
                renewed.set()
            return send(message)

        worker._link.send = spy  # type: ignore[method-assign]
        made = api.submit_task("k", queue="short", handler="long")
        done = api.get_task(made.task_id, wait=10)
        assert (done.state, done.attempt, done.result) == ("SUCCEEDED", 1, 1)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "result",
    ["x" * 300_000, "x" * 1_200_000, nested(65), nested(100), {1: 1, "1": 2}],
    ids=["256 KiB", "1 MiB", "65 levels", "100 levels", "twice the same key"],
)
def test_a_result_that_no_server_takes_ends_its_task(own: Running, result: Any) -> None:
    with working(own, bad=lambda _: result, good=lambda _: nested(64)) as (api, _):
        task = ended(api, "bad")
        assert (task.state, task.attempt, task.error.type) == ("FAILED", 1, "InvalidResult")
        assert ended(api, "good").result == nested(64)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), OSError("\ud800\0"), Speechless(), Dead("\ud800")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_ends_its_task_and_not_the_slot(own: Running, error: BaseException) -> None:
    def bad(_: Execution) -> None:
        raise error

    with working(own, bad=bad, good=lambda _: 10**4299) as (api, _):
        task = ended(api, "bad", max_attempts=1)
        assert task.state == "FAILED"
        assert isinstance(error, Dead) or task.error.type == type(error).__name__
        assert ended(api, "good").result == 10**4299


def test_a_coroutine_that_exits_ends_its_task_and_not_the_loop(own: Running) -> None:
    async def scenario() -> None:
        async with AsyncClient(own.url, own.credentials()) as api:
            worker = AsyncWorker(api, ["initial"])

            @worker.handler("h")
            async def h(_: Execution) -> None:
                sys.exit(3)

            async with worker:
                task = await api.submit_task("k", queue="initial", handler="h", max_attempts=1)
                assert (await api.get_task(task.task_id, wait=10)).error.type == "SystemExit"

    asyncio.run(scenario())


def test_a_finish_that_the_store_could_not_take_is_said_again(own: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    do, failed = steps.run, threading.Event()

    def run(store: Any, calls: Any) -> Any:
        if not failed.is_set() and any(isinstance(step, steps.End) for _, work in calls for step in work):
            failed.set()
            raise TransportUnavailable("the store is away")
        return do(store, calls)

    monkeypatch.setattr(steps, "run", run)
    with working(own, h=lambda _: 1) as (api, _):
        task = ended(api, "h")
        assert (failed.is_set(), task.state, task.attempt) == (True, "SUCCEEDED", 1)


def test_a_worker_that_the_server_cannot_read_says_so(own: Running) -> None:
    with Client(own.url, own.credentials()) as api, pytest.raises(InvalidArgument):
        Worker(api, ["initial"], handlers={"not a name": lambda _: 1}).run()

    async def scenario() -> None:
        async with AsyncClient(own.url, own.credentials()) as api:
            with pytest.raises(InvalidArgument):
                await AsyncWorker(api, ["initial"], handlers={"not a name": lambda _: 1}).run()

    asyncio.run(scenario())


def test_a_worker_without_permission_drains_at_once(own: Running) -> None:
    token, _ = own.grant(Grant("tasks:submit"), environment=own.environment)
    with Client(own.url, own.credentials(token)) as api:
        worker = Worker(api, ["initial"], handlers={"h": lambda _: 1})
        worker.start()
        assert worker.drain(60) is False
        worker.stop()
        with pytest.raises(PermissionDenied):
            worker.raise_failure()
