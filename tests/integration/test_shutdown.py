"""The end of a worker: what is handed back, what may finish, what is given up, and the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskmq import App, Retry, TaskState, current
from taskmq.outcome import Yield
from taskmq.testing.faulty import Faulty
from taskmq.testing.signals import PATIENCE, Gate, Record
from taskmq.transport.base import Reserve

MakeSite = Callable[..., Any]
POOLS = pytest.mark.parametrize("pool", ["threads", "solo", "asyncio"])
ALL_POOLS = pytest.mark.parametrize("pool", ["threads", "solo", "asyncio", "processes"])


def yields(faulty: Faulty) -> list[str]:
    """The ids that were handed back, in order."""
    return [
        item.delivery.id
        for call in faulty.calls.items
        if call.verb in ("settle", "settle_and_reserve")
        for item in call.params[0].items
        if isinstance(item.outcome, Yield)
    ]


def one_thread(pool: str) -> dict[str, Any]:
    return {"pool": pool} if pool == "solo" else {"pool": pool, "concurrency": 1}


# ── embedded ──


@POOLS
def test_stopping_hands_back_what_is_held_at_once_and_lets_running_ones_finish(site: MakeSite, pool: str) -> None:
    """While one task still runs, the held ones are with others already, in order; the running one then succeeds."""
    one = site(lease=0.4)
    app: App = one.app
    gate = Gate()

    @app.task
    def work(number: int) -> int:
        if number == 0:
            gate.pass_through()
        return number

    handles = app.enqueue_many([work.message(number) for number in range(6)])
    held = [handle.id for handle in handles[1:]]
    with app.worker(prefetch=8, grace=60, **one_thread(pool)) as worker:
        gate.arrivals.wait()
        worker.ask_to_stop()
        one.faulty.calls.wait_until(lambda _: len(yields(one.faulty)) == 5, "five hand-backs")
        assert yields(one.faulty) == held[::-1]
        other = app.store.reserve(Reserve(queues=("default",), limit=10, worker="other")).deliveries
        assert [delivery.id for delivery in other] == held
        assert not worker.join(0)
        # Through the grace the lease of the running one is kept.
        before = len(one.faulty.answered("extend"))
        one.faulty.calls.wait_until(lambda _: len(one.faulty.answered("extend")) >= before + 4, "four heartbeats")
        gate.open()
        assert worker.join(PATIENCE)
    assert app.get(handles[0].id).result == 0
    assert app.get(handles[0].id).epoch == 1
    assert (worker.stats.succeeded, worker.stats.handed_back) == (1, 5)


def test_nothing_is_reserved_after_the_stop(site: MakeSite) -> None:
    """A worker that is stopping takes no new work, although it settles."""
    one = site()
    app: App = one.app
    gate = Gate()

    @app.task
    def work() -> None:
        gate.pass_through()

    work.enqueue()
    with app.worker(concurrency=4) as worker:
        gate.arrivals.wait()
        worker.ask_to_stop()
        later = work.enqueue()
        gate.open()
    assert app.get(later.id).state is TaskState.QUEUED
    assert app.get(later.id).epoch == 0


@POOLS
def test_what_outlasts_the_grace_is_given_back_and_its_late_result_changes_nothing(site: MakeSite, pool: str) -> None:
    """A task that still runs when grace is over can run elsewhere at once; what its old execution says is dropped."""
    app: App = site().app
    gate, ended = Gate(), Record[int]()

    @app.task
    def stuck() -> str:
        gate.pass_through()
        ended.add(1)
        return "too late"

    handle = stuck.enqueue()
    worker = app.worker(**one_thread(pool))
    worker.start()
    gate.arrivals.wait()
    worker.stop(grace=0)
    task = app.get(handle.id)
    assert (task.state, task.attempt) == (TaskState.QUEUED, 1)
    assert "worker stopped" in (task.error or "")
    gate.open()
    ended.wait()
    assert app.get(handle.id).state is TaskState.QUEUED
    assert worker.stats.retried == 1


def test_a_last_attempt_that_outlasts_the_grace_is_dead(site: MakeSite) -> None:
    """max_attempts=1 means never twice, not even because the worker could not wait."""
    app: App = site().app
    gate = Gate()

    @app.task(retry=Retry(max_attempts=1))
    def stuck() -> None:
        gate.pass_through()

    handle = stuck.enqueue()
    worker = app.worker(concurrency=1)
    worker.start()
    gate.arrivals.wait()
    worker.stop(grace=0)
    gate.open()
    task = app.get(handle.id)
    assert (task.state, task.reason) == (TaskState.FAILED, "max_attempts")


def test_when_grace_is_over_handlers_are_told_and_may_end_by_themselves(site: MakeSite) -> None:
    """A handler that looks at ``cancelled`` when grace is over still gets its result in."""
    app: App = site().app
    arrivals = Record[int]()
    pause = threading.Lock()
    pause.acquire()

    @app.task
    def polite() -> str:
        arrivals.add(1)
        while not current().cancelled:
            pause.acquire(timeout=0.002)
        return "saved what I had"

    handle = polite.enqueue()
    with app.worker(concurrency=1) as worker:
        arrivals.wait()
        worker.stop(grace=0)
    assert app.get(handle.id).result == "saved what I had"


def test_a_coroutine_is_cancelled_when_grace_is_over(site: MakeSite) -> None:
    """A coroutine that outlasts the grace is cancelled, and its task is tried again elsewhere."""
    import asyncio

    app: App = site().app
    arrivals, cancelled = Record[int](), Record[int]()

    @app.task
    async def forever() -> None:
        arrivals.add(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.add(1)
            raise

    handle = forever.enqueue()
    with app.worker(concurrency=1) as worker:
        arrivals.wait()
        worker.stop(grace=0)
    assert cancelled.wait() == [1]
    assert app.get(handle.id).state in (TaskState.QUEUED, TaskState.RETRYING)


def test_outcomes_are_settled_although_the_store_fails_during_the_stop(site: MakeSite) -> None:
    """A store that is down when the worker stops gets its outcomes when it is back within the grace."""
    one = site()
    app: App = one.app
    gate = Gate()

    @app.task
    def work() -> str:
        gate.pass_through()
        return "done"

    handle = work.enqueue()
    with app.worker(concurrency=1, grace=60) as worker:
        gate.arrivals.wait()
        one.faulty.fail("settle", "settle_and_reserve")
        worker.ask_to_stop()
        gate.open()
        one.faulty.faults.wait(2)
        one.faulty.heal()
        assert worker.join(PATIENCE)
    assert app.get(handle.id).result == "done"


def test_a_store_that_stays_away_does_not_hold_up_the_end_for_ever(site: MakeSite) -> None:
    """With the grace over and the store gone the worker ends, and leaves the rest to the leases."""
    one = site()
    app: App = one.app
    gate = Gate()

    @app.task
    def work() -> None:
        gate.pass_through()

    work.enqueue()
    worker = app.worker(concurrency=1)
    worker.start()
    gate.arrivals.wait()
    one.faulty.fail("settle", "settle_and_reserve")
    gate.open()
    worker.ask_to_stop(grace=0)
    assert worker.join(PATIENCE)


def test_a_store_that_hangs_does_not_hold_up_the_process(
    site: MakeSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process whose store does not even answer leaves some seconds after the grace, with exit code 1."""
    one = site()
    app: App = one.app

    @app.task
    def work() -> None:
        one.faulty.hang("settle", "settle_and_reserve")
        worker.ask_to_stop(grace=0)

    work.enqueue()
    monkeypatch.setattr("taskmq.worker.shutdown.PATIENCE", 0.05)
    monkeypatch.setattr("taskmq.worker.worker.HANGING", 0.05)
    worker = app.worker(concurrency=1)
    assert worker.run() == 1
    assert "the store hangs" in caplog.text
    one.faulty.heal()
    assert worker.join(PATIENCE)


def test_the_row_is_forgotten_after_everything_is_settled(site: MakeSite) -> None:
    """Operators see the worker until its last outcome is in the store."""
    one = site()
    app: App = one.app

    @app.task
    def work() -> None:
        pass

    work.enqueue()
    with app.worker() as worker:
        assert worker.drain(PATIENCE)
    verbs = [call.verb for call in one.faulty.calls.items]
    assert verbs[-1] == "forget"
    assert max(index for index, verb in enumerate(verbs) if verb.startswith("settle")) < len(verbs) - 1


def test_no_thread_is_left(site: MakeSite) -> None:
    """After the stop none of the worker's threads lives on."""
    before = set(threading.enumerate())
    app: App = site().app

    @app.task
    async def work() -> None:
        pass

    work.enqueue()
    with app.worker(concurrency=4) as worker:
        assert worker.drain(PATIENCE)
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(PATIENCE)
    assert [thread.name for thread in left if thread.is_alive()] == []


# ── as a process ──

PROGRAM = """
import os, sys, time
from taskmq import App

app = App(sys.argv[1])
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task(name="work")
def work(number: int) -> None:
    os.write(ledger, b"%d\\n" % number)
    os.write(1, b"started\\n")  # in one piece: two threads write
    time.sleep(0.005)

@app.task(name="stuck")
def stuck() -> None:
    os.write(1, b"started\\n")
    time.sleep(600)

if __name__ == "__main__":
    sys.exit(app.worker(concurrency=2, grace=600, pool=sys.argv[3]).run())
"""


class Process:
    """A worker in a process of its own."""

    def __init__(self, folder: Path, pool: str) -> None:
        self.url = f"sqlite:///{folder / 'q.db'}"
        self.ledger = folder / "ledger"
        self._program = folder / "program.py"
        self._program.write_text(PROGRAM.replace("concurrency=2, ", "") if pool == "solo" else PROGRAM)
        self._pool = pool

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, str(self._program), self.url, str(self.ledger), self._pool]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def executed(self) -> Counter[str]:
        return Counter(self.ledger.read_text().split())


@pytest.fixture
def process(tmp_path: Path, pool: str) -> Process:
    return Process(tmp_path, pool)


@ALL_POOLS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_loses_nothing_and_exits_with_0(process: Process, number: signal.Signals) -> None:
    """SIGTERM in the middle of 300 tasks: exit code 0, none left running, and each is executed exactly once."""
    with App(process.url) as app:
        work = app.ref("work")
        app.enqueue_many([work.message(n) for n in range(300)])
        with process.running() as worker:
            assert worker.stdout is not None
            for _ in range(20):
                assert worker.stdout.readline().startswith("started")
            worker.send_signal(number)
            assert worker.wait(30) == 0
        states = Counter(task.state for task in app.tasks())
        assert set(states) == {TaskState.SUCCEEDED, TaskState.QUEUED}
        assert states[TaskState.SUCCEEDED] == sum(process.executed().values())
        assert all(task.attempt == 0 for task in app.tasks(state=TaskState.QUEUED))
        rest = Counter[str]()

        @app.task(name="work")
        def finish(n: int) -> None:
            rest[str(n)] += 1

        with app.worker(concurrency=1) as second:
            assert second.drain(60)
    assert process.executed() + rest == {str(n): 1 for n in range(300)}


@ALL_POOLS
def test_a_second_signal_ends_the_grace(process: Process) -> None:
    """The first SIGTERM waits for the running task; the second gives it back and exits with 0."""
    with App(process.url) as app:
        handle = app.ref("stuck").enqueue()
        with process.running() as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "started\n"
            worker.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(0.5)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(10) == 0
        task = app.get(handle.id)
        assert (task.state, task.attempt) == (TaskState.QUEUED, 1)


def test_the_signal_handlers_of_the_process_come_back() -> None:
    """``run`` leaves signal handlers and the switch interval as it has found them."""
    app = App("memory://")

    @app.task
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    stop.enqueue()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.getswitchinterval()
    assert app.worker(concurrency=1).run() == 0
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.getswitchinterval()) == before
