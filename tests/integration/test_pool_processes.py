"""What the pool of processes promises of its own: crashes, timeouts, recycling, and how children are steered."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from taskmq import App, ConfigError, InvalidArgument, Retry, TaskFailed, TaskState
from taskmq.outcome import Yield
from taskmq.testing.faulty import Faulty
from taskmq.testing.signals import PATIENCE
from taskmq.transport.base import Maintain, Reserve
from taskmq.transport.registry import open_store
from taskmq.worker.enforcement import Enforcement
from taskmq.worker.process import Process
from taskmq.worker.worker import Worker

LONG = 3 * PATIENCE


class Crew:
    """The app of ``crew.py`` on a store that tells what went through it, and the pipes to its children."""

    def __init__(self, folder: Path, url: str, wire: Any, module: Any) -> None:
        self.folder = folder
        self.url = url
        self.wire = wire
        self.tasks = module
        self.app: App = module.app
        self.faulty = Faulty(open_store(url))
        self.app._store = self.faulty.store

    def worker(self, concurrency: int = 1, **options: Any) -> Worker:
        return self.app.worker(pool="processes", queues=["default"], concurrency=concurrency, **options)

    def yields(self) -> list[str]:
        """The ids that were handed back, in order."""
        return [
            item.delivery.id
            for call in self.faulty.calls.items
            if call.verb in ("settle", "settle_and_reserve")
            for item in call.params[0].items
            if isinstance(item.outcome, Yield)
        ]


MakeCrew = Callable[..., Crew]


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeCrew]:
    """Makes a crew; environment variables are given by name."""
    made: list[Crew] = []

    def make(**environment: str) -> Crew:
        url = f"sqlite:///{tmp_path / 'q.db'}?synchronous=normal"
        for name, value in {"URL": url, "WIRE": str(tmp_path), **environment}.items():
            monkeypatch.setenv(f"CREW_{name}", value)
        sys.modules.pop("tests.integration.crew", None)
        module = importlib.import_module("tests.integration.crew")
        made.append(Crew(tmp_path, url, module.Wire(tmp_path), module))
        return made[-1]

    yield make
    for one in made:
        one.app.close()
        one.wire.close()


def gone(pid: int) -> bool:
    """Whether this process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def of_children() -> list[str]:
    """The descriptors of this process that are of the kinds a worker has for each child: three for one."""
    found = []
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the scan itself
            found.append(os.readlink(entry.path))
    return sorted(kind.split(":[")[0] for kind in found if re.match(r"socket:|anon_inode:.?pidfd|/memfd:taskmq", kind))


def wait_until_gone(pid: int) -> None:
    """A process that ends closes its pidfd: no polling."""
    import select

    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watch], [], [], PATIENCE)[0], f"process {pid} lives on"
    finally:
        os.close(watch)


# ── running ──


def test_handlers_run_in_other_processes(crew: MakeCrew) -> None:
    """Plain functions and coroutines run in children, results come back, and what a handler publishes arrives."""
    one = crew()
    plain, cooperative, spread = one.tasks.where.enqueue(), one.tasks.awhere.enqueue(), one.tasks.spread.enqueue(3)
    with one.worker(2) as worker:
        assert worker.drain(LONG)
        published = spread.result(timeout=1)
        pids = {plain.result(timeout=1), cooperative.result(timeout=1), *(one.app.get(key).result for key in published)}
    assert len(published) == 3
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    assert all(gone(pid) for pid in pids)


def test_children_run_at_the_same_time(crew: MakeCrew) -> None:
    """Two places are two processes that run two tasks together."""
    one = crew()
    handles = [one.tasks.wait.enqueue(name) for name in ("a", "b")]
    with one.worker(2) as worker:
        one.wire.wait(2)
        one.wire.open(2)
        assert worker.drain(LONG)
    assert len({handle.result(timeout=1) for handle in handles}) == 2


def test_a_result_larger_than_the_black_box_arrives(crew: MakeCrew) -> None:
    """Results up to the limit of the app come back whole, in whatever company."""
    one = crew()
    sizes = [10, 200_000, 255_000, 10, 255_000]
    handles = [one.tasks.large.enqueue(size) for size in sizes]
    with one.worker(1, prefetch=8) as worker:
        assert worker.drain(LONG)
    assert [len(handle.result(timeout=1)) for handle in handles] == sizes


def test_many_short_tasks_each_run_once(crew: MakeCrew) -> None:
    """Two thousand tasks through two children: every one is acknowledged at its first attempt."""
    one = crew()
    one.app.enqueue_many([one.tasks.where.message() for _ in range(2000)])
    with one.worker(2) as worker:
        assert worker.drain(60)
        assert (worker.stats.succeeded, worker.stats.started) == (2000, 2000)
    assert {(task.attempt, task.state) for task in one.app.tasks()} == {(1, TaskState.SUCCEEDED)}


def test_ordered_partitions_keep_their_order(crew: MakeCrew) -> None:
    """Tasks of an ordered partition run one after another, whichever child runs them."""
    one = crew()
    note = one.tasks.note
    one.app.enqueue_many([note.using(ordered_by=f"p{n % 3}").message(n) for n in range(60)])
    with one.worker(3, prefetch=32) as worker:
        assert worker.drain(LONG)
    said = [int(number) for _, number, _ in one.wire.wait(60)]
    assert all([n for n in said if n % 3 == code] == list(range(code, 60, 3)) for code in range(3))


def test_a_failing_head_runs_again_before_its_followers(crew: MakeCrew) -> None:
    """A fails twice, then B and C: A, A, A, B, C, and what had to wait has used no attempt."""
    one = crew()
    stumble = one.tasks.stumble
    one.app.enqueue_many([stumble.using(ordered_by="x").message(name, 2 * (name == "A")) for name in "ABC"])
    with one.worker(2, prefetch=16) as worker:
        assert worker.drain(LONG)
    assert one.wire.drained() == [["A", "1"], ["A", "2"], ["A", "3"], ["B", "1"], ["C", "1"]]


def test_last_attempts_are_marked_before_they_start(crew: MakeCrew) -> None:
    """With max_attempts=1 the store knows of the start before the child does anything."""
    one = crew()
    handles = one.app.enqueue_many([one.tasks.once.message(str(n)) for n in range(20)])
    with one.worker(2, prefetch=8) as worker:
        assert worker.drain(LONG)
    assert [handle.result(timeout=1) for handle in handles] == [True] * 20


def test_heartbeats_keep_the_lease_and_name_the_started_one(crew: MakeCrew) -> None:
    """A task that runs for several leases keeps its lease, and the store learns that it has started."""
    one = crew(LEASE="0.3")
    handle = one.tasks.wait.enqueue("long")
    with one.worker() as worker:
        one.wire.wait()
        one.faulty.calls.wait_until(
            lambda _: sum(item.started for call in one.faulty.answered("extend") for item in call.params[0].items) >= 6,
            "six heartbeats",
        )
        one.app.store.maintain(Maintain())
        assert one.app.store.reserve(Reserve(queues=("default",), limit=5, worker="other")).deliveries == []
        one.wire.open()
        assert worker.drain(LONG)
    assert (one.app.get(handle.id).epoch, one.app.get(handle.id).attempt) == (1, 1)


# ── crashes ──


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGSEGV", "was killed by SIGSEGV"),
        ("null", "was killed by SIGSEGV"),
        ("SIGKILL", "was killed by SIGKILL"),
        ("SIGABRT", "was killed by SIGABRT"),
        ("exit3", "exited with code 3"),
        ("exit0", "exited with code 0"),
    ],
)
def test_a_crash_costs_one_attempt_of_one_task(crew: MakeCrew, how: str, words: str) -> None:
    """The task that crashed is tried again, and each of its neighbours runs exactly once, at its first attempt."""
    one = crew()
    before = one.app.enqueue_many([one.tasks.note.message(n) for n in range(30)])
    crashed = one.tasks.crash.enqueue(how)
    after = one.app.enqueue_many([one.tasks.note.message(n) for n in range(30, 60)])
    with one.worker(1, prefetch=100) as worker:
        assert worker.drain(LONG)
    task = one.app.get(crashed.id)
    assert (task.result, task.attempt) == ("survived", 2)
    assert (task.attempts[0].error or "").endswith(f"the process that ran it {words}")
    ran = Counter(line[1] for line in one.wire.drained() if line[0] == "note")
    assert ran == {str(n): 1 for n in range(60)}
    assert {one.app.get(handle.id).attempt for handle in before + after} == {1}


def test_a_child_that_dies_idle_is_replaced(crew: MakeCrew, caplog: pytest.LogCaptureFixture) -> None:
    """Killing a child between two tasks costs no task anything."""
    one = crew()
    with one.worker() as worker:
        first = one.tasks.where.enqueue().result(timeout=LONG)
        assert worker.drain(LONG)
        os.kill(first, signal.SIGKILL)
        second = one.tasks.where.enqueue()
        assert second.result(timeout=LONG) != first
    assert one.app.get(second.id).attempt == 1
    assert "between two tasks" in caplog.text


def test_a_kill_from_outside_is_not_taken_for_the_timeout(crew: MakeCrew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with a timeout whose process is killed by another, as by a kernel short of memory, has not timed out."""
    seen = threading.Event()
    begun = Enforcement.begun
    monkeypatch.setattr(Enforcement, "begun", lambda *args: (begun(*args), seen.set()))
    one = crew()
    handle = one.tasks.wait.using(timeout=60, retry=Retry(max_attempts=1)).enqueue("a")
    with one.worker() as worker:
        ((_, pid),) = one.wire.wait()
        assert seen.wait(LONG)
        os.kill(int(pid), signal.SIGKILL)
        assert worker.drain(LONG)
    assert one.app.get(handle.id).error == "ProcessDied: the process that ran it was killed by SIGKILL"


def test_a_child_that_is_gone_leaves_no_descriptor_behind(crew: MakeCrew) -> None:
    """Socket, pidfd and shared memory of a child are given back when it has died, and of all when the worker stops."""
    one = crew()
    before = of_children()
    gc.disable()  # nothing of a child is part of a circle, so nothing of it waits for the collector
    try:
        with one.worker(1) as worker:
            one.tasks.where.enqueue().result(timeout=LONG)
            assert len(of_children()) == len(before) + 3
            for _ in range(3):
                one.tasks.crash.enqueue("SIGKILL").result(timeout=LONG)
                assert len(of_children()) == len(before) + 3
            assert worker.drain(LONG)
        assert of_children() == before
    finally:
        gc.enable()


def test_children_leave_signals_to_the_worker(crew: MakeCrew) -> None:
    """SIGINT and SIGTERM of a terminal or a service manager do not end what a child runs."""
    one = crew()
    handle = one.tasks.wait.enqueue("here")
    with one.worker() as worker:
        ((_, pid),) = one.wire.wait()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            os.kill(int(pid), number)
        one.wire.open()
        assert worker.drain(LONG)
    assert handle.result(timeout=1) == int(pid)


# ── timeouts and cancels ──


def test_a_hard_timeout_ends_one_task_and_one_child(crew: MakeCrew) -> None:
    """A function that hangs is killed at its timeout; the task says so, and its neighbours run once, elsewhere."""
    one = crew()
    hung = one.tasks.hang.enqueue()
    others = one.app.enqueue_many([one.tasks.note.message(n) for n in range(20)])
    with one.worker(1, prefetch=32) as worker:
        assert worker.drain(LONG)
    task = one.app.get(hung.id)
    assert task.state is TaskState.FAILED
    assert task.error == (
        "TimeoutError: the attempt took longer than its timeout of 0.15 s; the process that ran it was killed"
    )
    said = one.wire.drained()
    assert Counter(line[1] for line in said if line[0] == "note") == {str(n): 1 for n in range(20)}
    assert {one.app.get(handle.id).attempt for handle in others} == {1}
    assert said[0][0] == "hang"
    assert said[0][1] not in {line[2] for line in said[1:]}


def test_a_child_that_does_not_freeze_is_not_killed_but_tried_again(
    crew: MakeCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout kills nothing that may still run on: a child that cannot be frozen is thawed, and frozen later."""
    acts: list[str] = []
    freeze, thaw, kill = Process.freeze, Process.thaw, Process.kill

    def hardly_freeze(process: Process) -> bool:
        acts.append("freeze")
        return freeze(process) and acts.count("freeze") > 2

    monkeypatch.setattr(Process, "freeze", hardly_freeze)
    monkeypatch.setattr(Process, "thaw", lambda process: (acts.append("thaw"), thaw(process)))
    monkeypatch.setattr(Process, "kill", lambda process: (acts.append("kill"), kill(process)))
    one = crew()
    hung, then = one.tasks.hang.enqueue(), one.tasks.where.enqueue()
    with one.worker() as worker:
        assert worker.drain(LONG)
        *before, last, end = acts
    assert (last, end) == ("freeze", "kill")
    assert len(before) >= 4
    assert before == ["freeze", "thaw"] * (len(before) // 2)
    assert (one.app.get(hung.id).error or "").startswith("TimeoutError")
    assert one.app.get(then.id).attempt == 1


@pytest.mark.parametrize("block", [False, True])
def test_a_coroutine_over_its_timeout_is_ended_by_its_loop_or_killed(crew: MakeCrew, block: bool) -> None:
    """A coroutine is cancelled and its child lives on; one that blocks is killed a moment later."""
    one = crew()
    hung, then = one.tasks.ahang.enqueue(block), one.tasks.where.enqueue()
    with one.worker() as worker:
        assert worker.drain(LONG)
    assert (one.app.get(hung.id).error or "").startswith("TimeoutError: the attempt took longer than its timeout of")
    ((_, pid),) = one.wire.drained()
    assert (then.result(timeout=1) == int(pid)) is not block


@pytest.mark.parametrize("polite", [False, True])
def test_a_cancel_ends_a_running_task(crew: MakeCrew, polite: bool) -> None:
    """A handler that is cancelled sees it and may end by itself; if it does not, its process is killed."""
    one = crew(LEASE="0.3")
    handle = one.tasks.patient.enqueue(polite)
    with one.worker() as worker:
        one.wire.wait()
        one.app.store.cancel([handle.id])
        assert worker.drain(LONG)
    assert one.app.get(handle.id).state is TaskState.CANCELLED
    assert (["saved"] in one.wire.drained()) is polite


# ── recycling ──


def test_a_child_is_replaced_after_its_number_of_tasks(crew: MakeCrew) -> None:
    """No child runs more than max_tasks_per_child, and all tasks run."""
    one = crew()
    handles = one.app.enqueue_many([one.tasks.where.message() for _ in range(25)])
    with one.worker(1, max_tasks_per_child=10, prefetch=8) as worker:
        assert worker.drain(60)
    pids = Counter(handle.result(timeout=1) for handle in handles)
    assert max(pids.values()) <= 10
    assert len(pids) >= 3


def test_a_child_is_replaced_when_it_has_grown(crew: MakeCrew) -> None:
    """A child above max_memory_per_child works on until its successor is there; then it leaves."""
    one = crew()
    with one.worker(1, max_memory_per_child=150) as worker:
        first = one.tasks.grow.enqueue(200).result(timeout=LONG)
        watch = os.pidfd_open(first)
        while (latest := one.tasks.where.enqueue().result(timeout=LONG)) == first:
            pass
        os.close(watch)
        wait_until_gone(first)
        assert one.tasks.grow.enqueue(1).result(timeout=LONG) == latest
        assert worker.stats.failed == 0


# ── shutdown ──


def test_stopping_hands_back_what_children_hold(crew: MakeCrew) -> None:
    """While one task still runs, the unstarted ones behind it in the child are with others already, in order."""
    one = crew()
    first = one.tasks.wait.enqueue("first")
    held = one.app.enqueue_many([one.tasks.note.message(n) for n in range(12)])
    with one.worker(1, prefetch=32, grace=60) as worker:
        worker._pool._run_time = 0.0001  # type: ignore[attr-defined]  # as if short ones had run: batches are large
        one.wire.wait()
        worker.ask_to_stop()
        one.faulty.calls.wait_until(lambda _: len(one.yields()) == 12, "twelve hand-backs")
        other = one.app.store.reserve(Reserve(queues=("default",), limit=20, worker="other")).deliveries
        assert [delivery.id for delivery in other] == [handle.id for handle in held]
        assert {delivery.attempt for delivery in other} == {1}
        one.wire.open()
        assert worker.join(PATIENCE)
    assert one.app.get(first.id).state is TaskState.SUCCEEDED


def test_what_outlasts_the_grace_is_killed_and_given_back(crew: MakeCrew) -> None:
    """Grace over: the child is ended, then its task goes back, and can run elsewhere at once."""
    one = crew()
    handle = one.tasks.patient.enqueue(False)
    worker = one.worker()
    worker.start()
    ((_, pid),) = one.wire.wait()
    worker.stop(grace=0)
    assert gone(int(pid))
    task = one.app.get(handle.id)
    assert (task.state, task.attempt) == (TaskState.QUEUED, 1)
    assert "worker stopped" in (task.error or "")


def test_children_end_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL for the worker: its children end by themselves, even in the middle of a task."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time\n"
        "from taskmq import App\n"
        "app = App(sys.argv[1])\n"
        "@app.task(name='work')\n"
        "def work() -> None:\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    app.run_worker(pool='processes', concurrency=2)\n"
    )
    url = f"sqlite:///{tmp_path / 'q.db'}"
    with App(url) as app:
        app.ref("work").enqueue()
        app.ref("work").enqueue()
    with subprocess.Popen([sys.executable, str(program), url], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pids = [int(worker.stdout.readline()) for _ in range(2)]
        worker.kill()
        for pid in pids:
            wait_until_gone(pid)


# ── progress and hooks ──


def test_progress_of_a_child_reaches_the_store(crew: MakeCrew) -> None:
    """What a handler in a child says of its progress stands in the store while it still runs."""
    one = crew()
    handle = one.tasks.report.enqueue(1000)
    with one.worker() as worker:
        one.wire.wait()
        one.faulty.calls.wait_until(
            lambda _: any(
                item.progress is not None and item.progress.done == 1000
                for call in one.faulty.answered("extend")
                for item in call.params[0].items
            ),
            "the last progress",
        )
        one.wire.open()
        assert worker.drain(LONG)
    assert one.app.get(handle.id).state is TaskState.SUCCEEDED


def test_hooks_fire_where_handlers_run(crew: MakeCrew) -> None:
    """worker_start and worker_stop fire in the worker and in each child, the hooks of a task in its child."""
    one = crew(HOOKS="1")
    with one.worker() as worker:
        pid = one.tasks.where.enqueue().result(timeout=LONG)
        assert worker.drain(LONG)
    here, there = str(os.getpid()), str(pid)
    assert one.wire.wait(5) == [
        ["start", "Worker", here],
        ["start", "ChildWorker", there],
        ["before", there],
        ["stop", "ChildWorker", there],
        ["stop", "Worker", here],
    ]


# ── from the command line ──


def test_the_command_runs_processes(tmp_path: Path) -> None:
    """``taskmq worker --pool processes`` with its options runs what is published and ends well on SIGTERM."""
    (tmp_path / "shop.py").write_text(
        "import os\nfrom taskmq import App\napp = App('sqlite:///q.db')\n"
        "@app.task\ndef work() -> int:\n    return os.getpid()\n"
    )
    command = [sys.executable, "-m", "taskmq", "worker", "shop", "--pool", "processes", "--concurrency", "1"]
    command += [
        "--max-tasks-per-child",
        "5",
        "--max-memory-per-child",
        "500",
        "--queues",
        "default=3",
        "--apply-config",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with App(f"sqlite:///{tmp_path / 'q.db'}") as app:
        work = app.ref("shop.work")
        handles = app.enqueue_many([work.message() for _ in range(12)])
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as worker:
            pids = Counter(handle.result(timeout=60) for handle in handles)
            worker.send_signal(signal.SIGTERM)
            _, log = worker.communicate(timeout=60)
        assert worker.returncode == 0, log
        assert app.store.stats(["default"])[0].config.weight == 3
    assert max(pids.values()) <= 5
    assert worker.pid not in pids


# ── what cannot work ──


def test_an_app_that_no_module_has_is_refused() -> None:
    """Children could not import it: the error says what to do."""
    app = App("memory://")

    @app.task
    def local() -> None: ...

    with app, pytest.raises(ConfigError, match="top level of a module"):
        app.worker(pool="processes").start()


@pytest.mark.parametrize("option", ["max_tasks_per_child", "max_memory_per_child"])
def test_recycling_is_for_processes(option: str) -> None:
    """The options are refused where nothing can be recycled, and outside their range."""
    app = App("memory://")
    with app:
        with pytest.raises(InvalidArgument, match="go with pool processes"):
            app.worker(queues="a", **{option: 5})
        with pytest.raises(InvalidArgument, match=option):
            app.worker(queues="a", pool="processes", **{option: 0})


SCRIPT = """
import os, sys
from taskmq import App
app = App(sys.argv[1])
if {broken!r} and os.environ.get("MAIN") != str(os.getpid()):
    raise RuntimeError("cannot be imported twice")
@app.task
def work() -> int:
    return os.getpid()
{start}
"""
GUARDED = """
if __name__ == "__main__":
    handle = work.enqueue()
    with app.worker(pool="processes", concurrency=1) as worker:
        assert handle.result(timeout=60) != os.getpid()
        print(handle.state(), app.get(handle.id).handler)
"""
UNGUARDED = """
sys.exit(app.run_worker(pool="processes", concurrency=1))
"""


def run(tmp_path: Path, start: str, broken: bool = False) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "my_shop.py"
    program.write_text(SCRIPT.format(start=start, broken=broken))
    command = f'MAIN=$$ exec "{sys.executable}" "{program}" "sqlite:///{tmp_path / "q.db"}"'
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)


def test_a_script_is_imported_under_its_own_name(tmp_path: Path) -> None:
    """``python my_shop.py`` with a guard works: its children know the handler my_shop.work."""
    ended = run(tmp_path, GUARDED)
    assert (ended.returncode, ended.stdout) == (0, "SUCCEEDED my_shop.work\n"), ended.stderr


def test_a_script_without_a_guard_is_refused_in_its_children(tmp_path: Path) -> None:
    """A program that starts its worker whenever it is imported ends with code 1 and is told what to write."""
    ended = run(tmp_path, UNGUARDED)
    assert ended.returncode == 1
    assert 'start it below if __name__ == "__main__"' in ended.stderr


def test_a_worker_whose_children_never_come_up_ends(tmp_path: Path) -> None:
    """An app that fails to import in the children is reported with its error, a few times, and the exit code is 1."""
    ended = run(tmp_path, UNGUARDED, broken=True)
    assert ended.returncode == 1
    assert "RuntimeError: cannot be imported twice" in ended.stderr
    assert ended.stderr.count("cannot import the app") <= 4
    assert "no child process comes up" in ended.stderr


def test_a_store_of_one_process_is_warned_about(crew: MakeCrew, caplog: pytest.LogCaptureFixture) -> None:
    """On a memory store handlers in children work, but what they publish goes nowhere; the log says so."""
    one = crew()
    one.app.close()
    one.app._closed = False
    one.app._store = open_store("memory://")
    with caplog.at_level(logging.WARNING), one.worker():
        assert one.tasks.where.enqueue().result(timeout=LONG) != os.getpid()
        with pytest.raises(TaskFailed):
            one.tasks.hang.enqueue().result(timeout=LONG)
    assert "goes nowhere" in caplog.text
    assert "cannot end a function" not in caplog.text
