"""The processes of one run: the publisher, two ``taskmq worker``s, and the kills.

One of the workers is killed with SIGKILL, at moments spread over the run and only while its handlers are at work, and
is started anew at once. What it held comes back when its lease is over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from examples.permits.journal import Entry, Reader
from taskmq import App, TaskInfo, TaskState

ROOT = Path(__file__).parents[2]
APP = "examples.permits.app"
QUEUE = "permits"
THREADS = 8
LOOK_EVERY = 0.002
ASK_EVERY = 0.1
STOPPING = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to run. ``work``: seconds that a handler takes · ``timeout``: seconds after which the run is given up."""

    path: Path
    events: int
    out: Path
    url: str
    run: str
    kills: int = 3
    work: float = 0.001
    timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL. ``at``: microseconds · ``held``: deliveries that the store knew in the dead worker's hands."""

    worker: str
    pid: int
    at: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is known after a run. Times are microseconds since the epoch."""

    tasks: list[TaskInfo]
    entries: list[Entry]
    kills: list[Kill]
    exit_codes: dict[str, int]
    started_at: int
    ended_at: int


class RunFailed(Exception):
    """The run came to no end: a worker died that nobody had killed, or time was over."""


@dataclass
class Workers:
    """The worker processes by name. A worker that is started anew gets a new name: ``A1``, ``A2`` …"""

    environment: dict[str, str]
    log: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start ``taskmq worker``."""
        command = [sys.executable, "-m", "taskmq", "worker", f"{APP}:app"]
        options = ["--concurrency", str(THREADS), "--name", name]
        with self.log.open("ab") as log:
            self.processes[name] = subprocess.Popen([*command, *options], cwd=ROOT, env=self.environment, stderr=log)

    def kill(self, name: str) -> int:
        """End it with SIGKILL; returns its pid once it is dead."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        return process.pid

    def check(self) -> None:
        """Raise RunFailed if one of them has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RunFailed(f"worker {name} ended by itself with code {process.returncode}: see {self.log}")

    def stop(self) -> None:
        """Ask all of them to stop, and wait."""
        for process in self.processes.values():
            process.terminate()
        self.exit_codes = {name: process.wait(STOPPING) for name, process in self.processes.items()}

    def end(self) -> None:
        """Leave no process behind, whatever has happened."""
        for process in self.processes.values():
            process.kill()
            process.wait()


class Rig:
    """One run, from an empty namespace to its figures. ``tell`` gets a line for everything that happens."""

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._app = App(settings.url, namespace=settings.run)
        self._journal = Reader(settings.out / "handled.jsonl")
        self._environment = {
            **os.environ,
            "TASKMQ_URL": settings.url,
            "PERMITS_RUN": settings.run,
            "PERMITS_JOURNAL": str(settings.out / "handled.jsonl"),
            "PERMITS_WORK": str(settings.work),
        }
        self._workers = Workers(self._environment, settings.out / "workers.log")
        self._kills: list[Kill] = []
        self._done: set[int] = set()
        self._at_work: dict[tuple[str, int], Entry] = {}
        self._deadline = time.monotonic() + settings.timeout

    def run(self) -> Run:
        """Publish, work, kill, finish; raises RunFailed."""
        with self._app:
            if not self._app.store.capabilities.shared:
                raise RunFailed(f"several processes cannot share {self._app.config.safe_url}")
            self._publish()
            started_at = _now()
            try:
                self._work()
                ended_at = _now()
                self._workers.stop()
            finally:
                self._workers.end()
            self._look()
            return Run(
                tasks=list(self._app.tasks(queue=QUEUE)),
                entries=self._journal.entries,
                kills=self._kills,
                exit_codes=self._workers.exit_codes,
                started_at=started_at,
                ended_at=ended_at,
            )

    def _publish(self) -> None:
        command = [sys.executable, "-m", APP, str(self._settings.path)]
        published = subprocess.run(
            command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if published.returncode:
            raise RunFailed("publishing failed")
        self._tell(published.stdout.strip())

    def _work(self) -> None:
        self._workers.start("A1")
        first = self._workers.processes["A1"].pid
        self._wait(
            lambda: self._is_at_work(first), LOOK_EVERY
        )  # or the other one may do all before this one can be killed
        self._workers.start("B1")
        kills = self._settings.kills
        for number in range(1, kills + 1):
            self._kill_after(self._settings.events * number // (kills + 1), f"A{number}")
            self._workers.start(f"A{number + 1}")
        self._wait(self._all_ended, ASK_EVERY)

    def _kill_after(self, events: int, worker: str) -> None:
        pid = self._workers.processes[worker].pid
        self._wait(lambda: len(self._done) >= events and self._is_at_work(pid), LOOK_EVERY)
        self._workers.kill(worker)
        at = _now()
        held = [task for task in self._app.tasks(queue=QUEUE, state=TaskState.RUNNING) if task.worker == worker]
        self._kills.append(Kill(worker, pid, at, len(held)))
        self._tell(f"worker {worker} killed after {len(self._done):,} events: it held {len(held)} deliveries")

    def _is_at_work(self, pid: int) -> bool:
        return any(entry.pid == pid for entry in self._at_work.values())

    def _all_ended(self) -> bool:
        stats = self._app.queue(QUEUE).stats()
        return not (stats.scheduled or stats.ready or stats.running or stats.retrying)

    def _wait(self, condition: Callable[[], bool], pause: float) -> None:
        self._look()
        while not condition():
            self._workers.check()
            if time.monotonic() > self._deadline:
                raise RunFailed(f"{len(self._done):,} of {self._settings.events:,} events after the timeout")
            time.sleep(pause)
            self._look()

    def _look(self) -> None:
        for entry in self._journal.read_on():
            if entry.what == "start":
                self._at_work[entry.task, entry.epoch] = entry
            else:
                self._at_work.pop((entry.task, entry.epoch), None)
                self._done.add(entry.event)


def _now() -> int:
    return time.time_ns() // 1000
