from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from taskmq import App, Handle, InvalidArgument, ResultTimeout, TaskFailed, TaskInfo, TaskNotFound, TaskState, handle
from taskmq.outcome import Ack, Dead
from taskmq.transport.base import Reserve, Settle, Settlement

ID = "0" * 32


class Script:
    """A store whose task is in one state after another."""

    def __init__(self, *states: TaskState, **last: Any) -> None:
        self.states = list(states)
        self.last = last
        self.looks = 0
        self.watched: list[float] = []
        self.clock: FakeTime | None = None

    def get(self, _ids: list[str]) -> list[TaskInfo]:
        self.looks += 1
        state = self.states[min(self.looks, len(self.states)) - 1]
        fields: dict[str, Any] = {"priority": 0, "seq": 1, "attempt": 1, "max_attempts": 3, "epoch": 1, **self.last}
        return [TaskInfo(id=ID, queue="q", handler="h", state=state, **fields)]

    def watch(self, _id: str, timeout: float) -> bool:
        """The task has not ended when the time is over."""
        assert self.clock is not None, "nothing here should wait"
        self.watched.append(timeout)
        self.clock.now += timeout
        return False


class FakeTime:
    """time, as far as a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(handle, "time", fake)
    return fake


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as app:
        yield app


def scripted(*states: TaskState, **last: Any) -> Handle[Any]:
    return Handle(Script(*states, **last), ID, "q", duplicate=False)  # type: ignore[arg-type]


def settle(app: App, outcome: Any) -> None:
    delivery = app.store.reserve(Reserve(queues=["default"], limit=1, worker="w")).deliveries[0]
    app.store.settle(Settle(items=[Settlement(delivery, outcome)]))


def test_it_watches_as_long_as_it_takes(clock: FakeTime) -> None:
    """Without a timeout the store is asked to watch again and again, for a bounded time each, until the task ends."""
    script = Script(*[TaskState.RUNNING] * 3, TaskState.SUCCEEDED, result=7)
    script.clock = clock
    assert Handle(script, ID, "q", duplicate=False).result() == 7  # type: ignore[arg-type]
    assert script.watched == [handle.WATCH] * 3


def test_a_result_that_is_there_needs_no_waiting(clock: FakeTime) -> None:
    """A task that has ended answers at the first look, even with no time to wait."""
    assert scripted(TaskState.SUCCEEDED, result=7).result(timeout=0) == 7


def test_the_timeout_ends_the_waiting(clock: FakeTime) -> None:
    """When the time is over ResultTimeout is raised, and the store is never asked to watch beyond it."""
    script = Script(TaskState.RUNNING)
    script.clock = clock
    with pytest.raises(ResultTimeout, match="within 7s"):
        Handle(script, ID, "q", duplicate=False).result(timeout="7s")  # type: ignore[arg-type]
    assert script.watched == [handle.WATCH, 7 - handle.WATCH]


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_the_store_wakes_who_waits(scheme: str, tmp_path: Path) -> None:
    """A result that comes while it is waited for ends the wait, although one watch would be as long as the test."""
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/q.db"
    with App(url) as app, pytest.MonkeyPatch.context() as patch:
        patch.setattr(handle, "WATCH", 200.0)
        waited = app.ref("elsewhere").enqueue()
        watching, results = threading.Event(), []
        watch = app.store.watch

        def seen(task_id: str, timeout: float) -> bool:
            watching.set()
            return watch(task_id, timeout)

        patch.setattr(app.store, "watch", seen)
        thread = threading.Thread(target=lambda: results.append(waited.result(timeout=100)))
        thread.start()
        assert watching.wait(60)
        settle(app, Ack(b"7"))
        thread.join(60)
        assert results == [7]


def test_an_interrupt_ends_the_waiting(tmp_path: Path) -> None:
    """Ctrl-C in a process that waits for a result ends it at once."""
    code = (  # a job in the background begins with SIGINT ignored
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from taskmq import App\napp = App('sqlite:///{tmp_path}/q.db')\nh = app.ref('x').enqueue()\n"
        "watch = app.store.watch\ndef told(*given):\n    print('waiting', flush=True)\n    return watch(*given)\n"
        "app.store.watch = told\nh.result()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err


@pytest.mark.parametrize("timeout", [-1, "soon", True], ids=repr)
def test_a_timeout_is_a_duration(clock: FakeTime, timeout: Any) -> None:
    """What is no duration is refused."""
    with pytest.raises(InvalidArgument, match="timeout"):
        scripted(TaskState.RUNNING).result(timeout=timeout)


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED])
def test_a_task_without_success_raises(state: TaskState) -> None:
    """TaskFailed carries state, reason and error."""
    with pytest.raises(TaskFailed, match=f"ended {state}: max_attempts: ValueError: x") as caught:
        scripted(state, reason="max_attempts", error="ValueError: x").result()
    failed = caught.value
    assert (failed.task_id, failed.state, failed.reason, failed.error) == (ID, state, "max_attempts", "ValueError: x")


def test_aresult_waits_without_a_thread() -> None:
    """The twin for coroutines gives the same results and errors."""
    assert asyncio.run(scripted(TaskState.RUNNING, TaskState.SUCCEEDED, result=7).aresult()) == 7
    with pytest.raises(ResultTimeout):
        asyncio.run(scripted(TaskState.RUNNING).aresult(timeout=0))


def test_the_result_is_of_the_annotated_type(app: App) -> None:
    """The handler's return annotation says what comes out."""

    @app.task
    def day() -> date:
        return date(2026, 3, 1)

    handle = day.enqueue()
    settle(app, Ack(b'"2026-03-01"'))
    assert handle.result() == date(2026, 3, 1)


def test_the_result_of_an_unknown_handler_is_plain_json(app: App) -> None:
    """Where the handler is not known here, the result is what JSON says."""
    handle = app.ref("elsewhere").enqueue()
    settle(app, Ack(b'["2026-03-01"]'))
    assert handle.result() == ["2026-03-01"]


def test_state_follows_the_task(app: App) -> None:
    """A handle looks into the store each time."""
    handle = app.ref("elsewhere").enqueue()
    assert handle.state() is TaskState.QUEUED
    settle(app, Dead("failed", "ValueError: x"))
    assert handle.state() is TaskState.FAILED
    assert handle.info().error == "ValueError: x"


def test_cancel_tells_the_state(app: App) -> None:
    """A waiting task is cancelled at once, and stays cancelled."""
    handle = app.ref("elsewhere").enqueue()
    assert handle.cancel() is TaskState.CANCELLED
    with pytest.raises(TaskFailed, match="ended CANCELLED"):
        handle.result()


def test_a_task_that_is_not_there_raises(app: App) -> None:
    """Every question about a task without a record raises TaskNotFound."""
    gone: Handle[Any] = Handle(app.store, ID, "q", duplicate=False)
    for question in (gone.info, gone.state, gone.cancel, gone.result):
        with pytest.raises(TaskNotFound, match=ID):
            question()


def test_a_duplicate_is_the_first_task(app: App) -> None:
    """The same key and content give a handle of the same task, marked as a duplicate."""
    first = app.ref("elsewhere", key="k").enqueue(1)
    second = app.ref("elsewhere", key="k").enqueue(1)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.id == second.id
