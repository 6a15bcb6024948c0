"""What the asyncio pool promises of its own: coroutines that wait, block, are stopped, or meddle with their task."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from taskmq import App, Retry, TaskState, current
from taskmq.testing.signals import PATIENCE, Gate, Record
from taskmq.transport.base import Maintain, Reserve

MakeSite = Callable[..., Any]
mark: ContextVar[str] = ContextVar("mark", default="none")


def test_a_handler_that_blocks_the_loop_loses_no_lease(site: MakeSite) -> None:
    """A coroutine that blocks for many leases keeps its lease, and those of the coroutines it holds up."""
    one = site(lease=0.2)
    app: App = one.app
    gate, waits = Gate(), Record[int]()

    @app.task
    async def waiting() -> None:
        waits.add(1)
        await asyncio.sleep(0.001)

    @app.task
    async def blocking() -> None:
        gate.pass_through()

    handles = [waiting.enqueue(), blocking.enqueue(), waiting.enqueue()]
    with app.worker(pool="asyncio", prefetch=8) as worker:
        gate.arrivals.wait()
        one.faulty.calls.wait_until(lambda _: len(one.faulty.answered("extend")) >= 9, "nine heartbeats")
        app.store.maintain(Maintain())
        assert app.store.reserve(Reserve(queues=("default",), limit=5, worker="other")).deliveries == []
        gate.open()
        assert worker.drain(PATIENCE)
    assert [(app.get(handle.id).epoch, app.get(handle.id).attempt) for handle in handles] == [(1, 1)] * 3


def test_coroutines_wait_together_up_to_the_concurrency(site: MakeSite) -> None:
    """Five places: five coroutines wait at the same time, never six."""
    app: App = site().app
    most = 0
    running = 0
    together = Record[int]()

    @app.task
    async def work() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        if running == 5:
            together.add(1)
        await asyncio.sleep(0.005)
        running -= 1

    app.enqueue_many([work.message() for _ in range(40)])
    with app.worker(pool="asyncio", concurrency=5) as worker:
        together.wait()
        assert worker.drain(PATIENCE)
    assert most == 5


@pytest.mark.parametrize("waits", [False, True])
def test_each_coroutine_has_its_own_context_and_one_task(site: MakeSite, waits: bool) -> None:
    """What one sets in a ContextVar the next does not see; current() and the asyncio task are the same to the end."""
    app: App = site().app

    @app.task
    async def work(name: str) -> list[Any]:
        before, task = mark.get(), asyncio.current_task()
        mark.set(name)
        async with asyncio.timeout(60):
            if waits:
                await asyncio.sleep(0)
        same = asyncio.current_task() is task and task is not None
        inner = await asyncio.create_task(_marked()) if waits else mark.get()
        return [before, mark.get(), inner, same, current().task_id]

    handles = [work.enqueue(str(n)) for n in range(20)]
    with app.worker(pool="asyncio", concurrency=3) as worker:
        assert worker.drain(PATIENCE)
    for n, handle in enumerate(handles):
        assert handle.result(timeout=1) == ["none", str(n), str(n), True, handle.id]


async def _marked() -> str:
    return mark.get()


def test_an_inner_timeout_is_the_coroutine_s_own(site: MakeSite) -> None:
    """``asyncio.timeout`` around the first wait of a handler ends that wait and nothing else."""
    app: App = site().app

    @app.task
    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
        return "went on"

    handle = work.enqueue()
    with app.worker(pool="asyncio") as worker:
        assert worker.drain(PATIENCE)
    assert handle.result(timeout=1) == "went on"


def test_a_coroutine_over_its_timeout_is_stopped(site: MakeSite) -> None:
    """The attempt ends with a TimeoutError that names the bound, and the traceback begins in the handler."""
    app: App = site().app

    @app.task(timeout=0.01, retry=Retry(max_attempts=1))
    async def endless() -> None:
        await asyncio.Event().wait()

    handle = endless.enqueue()
    with app.worker(pool="asyncio") as worker:
        assert worker.drain(PATIENCE)
    task = app.get(handle.id)
    assert task.error == "TimeoutError: the attempt took longer than its timeout of 0.01 s"
    assert "in endless" in (task.traceback or "")
    assert "taskmq/worker" not in (task.traceback or "")


def test_an_operator_s_cancel_ends_a_coroutine(site: MakeSite) -> None:
    """A running coroutine that is cancelled gets CancelledError once, may clean up, and its task ends CANCELLED."""
    app: App = site(lease=0.2).app
    arrivals, cleaned = Record[int](), Record[bool]()

    @app.task
    async def endless() -> None:
        arrivals.add(1)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.001)
            cleaned.add(current().cancelled)

    handle = endless.enqueue()
    with app.worker(pool="asyncio") as worker:
        arrivals.wait()
        app.store.cancel([handle.id])
        assert cleaned.wait() == [True]
        assert worker.drain(PATIENCE)
    assert app.get(handle.id).state is TaskState.CANCELLED


def test_a_coroutine_is_cancelled_when_grace_is_over(site: MakeSite) -> None:
    """Step five of the shutdown: coroutines get CancelledError, and their tasks can run elsewhere at once."""
    app: App = site().app
    arrivals, cancelled = Record[int](), Record[int]()

    @app.task
    async def endless() -> None:
        arrivals.add(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.add(1)
            raise

    handles = [endless.enqueue() for _ in range(3)]
    with app.worker(pool="asyncio") as worker:
        arrivals.wait(3)
        worker.stop(grace=0)
    assert cancelled.items == [1, 1, 1]
    assert {app.get(handle.id).state for handle in handles} == {TaskState.QUEUED}


def test_plain_functions_do_not_block_the_loop(site: MakeSite) -> None:
    """A plain function runs in a thread of its own: coroutines go on while it waits for one of them."""
    app: App = site().app
    gate = Gate()

    @app.task
    def plain() -> str:
        gate.pass_through()
        return threading.current_thread().name

    @app.task
    async def opening() -> str:
        gate.open()
        return threading.current_thread().name

    handles = [plain.enqueue() for _ in range(4)]
    with app.worker(pool="asyncio") as worker:
        gate.arrivals.wait(4)
        last = opening.enqueue()
        assert worker.drain(PATIENCE)
    names = {handle.result(timeout=1) for handle in handles}
    assert len(names) == 4
    assert all(name.startswith("taskmq-handler-") for name in names)
    assert last.result(timeout=1) == "taskmq-loop"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("waits", [False, True])
def test_an_exit_ends_its_task_and_not_the_loop(site: MakeSite, error: BaseException, waits: bool) -> None:
    """A coroutine that raises what is no Exception fails alone, before its first wait or after it."""
    app: App = site().app

    @app.task
    async def leave() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    @app.task
    async def stay() -> str:
        return "here"

    left, stayed = leave.enqueue(), stay.enqueue()
    with app.worker(pool="asyncio") as worker:
        assert worker.drain(PATIENCE)
    assert app.get(left.id).state is TaskState.FAILED
    assert stayed.result(timeout=1) == "here"


@pytest.mark.parametrize("waits", [False, True])
def test_a_coroutine_that_cancels_its_own_task_cancels_no_other(site: MakeSite, waits: bool) -> None:
    """Whatever a handler does to the asyncio task it runs in, the next handler does not feel it."""
    app: App = site().app

    @app.task(retry=Retry(max_attempts=1))
    async def meddle() -> None:
        if waits:
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @app.task(retry=Retry(max_attempts=1))
    async def innocent() -> str:
        await asyncio.sleep(0)
        return "unharmed"

    handles = []
    for _ in range(5):
        meddle.enqueue()
        handles.append(innocent.enqueue())
    with app.worker(pool="asyncio", concurrency=1) as worker:
        assert worker.drain(PATIENCE)
    assert [handle.result(timeout=1) for handle in handles] == ["unharmed"] * 5


def test_an_exit_in_a_background_task_leaves_the_loop_running(site: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    """A task that a handler has left behind and that raises SystemExit does not take the worker's loop with it."""
    app: App = site().app
    left = []

    async def leave() -> None:
        raise SystemExit(1)

    @app.task
    async def work(leaves: bool) -> str:
        if leaves:
            left.append(asyncio.create_task(leave()))
            await asyncio.sleep(0)
        return "done"

    work.enqueue(True)
    with app.worker(pool="asyncio", concurrency=2) as worker:
        assert worker.drain(PATIENCE)
        assert work.enqueue(False).result(timeout=PATIENCE) == "done"
        assert worker.drain(PATIENCE)
    assert "SystemExit got out of a task" in caplog.text
    assert isinstance(left[0].exception(), SystemExit)


def test_what_is_left_on_the_loop_is_cancelled_at_the_end(site: MakeSite) -> None:
    """A background task of a handler gets CancelledError when the worker stops, as under ``asyncio.run``."""
    app: App = site().app
    ended = Record[str]()
    left = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.add("cancelled")

    @app.task
    async def work() -> None:
        left.append(asyncio.create_task(background()))
        await asyncio.sleep(0)

    work.enqueue()
    with app.worker(pool="asyncio") as worker:
        assert worker.drain(PATIENCE)
    assert ended.items == ["cancelled"]


def test_last_attempts_of_coroutines_are_marked_first(site: MakeSite) -> None:
    """With max_attempts=1 the store knows of the start before the coroutine does anything."""
    app: App = site().app
    seen: list[bool] = []

    @app.task(retry=Retry(max_attempts=1))
    async def once() -> None:
        seen.append(app.get(current().task_id).started_at is not None)
        await asyncio.sleep(0)

    app.enqueue_many([once.message() for _ in range(50)])
    with app.worker(pool="asyncio", concurrency=7, prefetch=8) as worker:
        assert worker.drain(PATIENCE)
    assert seen == [True] * 50


def test_ordered_coroutines_wait_for_one_another(site: MakeSite) -> None:
    """Coroutines of an ordered partition run in publish order, one at a time, although each of them waits."""
    app: App = site().app
    order: dict[str, list[int]] = defaultdict(list)
    running: dict[str, int] = defaultdict(int)

    @app.task
    async def note(code: str, number: int) -> None:
        running[code] += 1
        assert running[code] == 1
        await asyncio.sleep(0)
        order[code].append(number)
        running[code] -= 1

    app.enqueue_many([note.using(ordered_by=code).message(code, n) for n in range(60) for code in "abc"])
    with app.worker(pool="asyncio", prefetch=64) as worker:
        assert worker.drain(20)
        assert worker.stats.failed == 0
    assert all(order[code] == list(range(60)) for code in "abc")
