"""Handlers that child processes import, and what they say over a pipe. Each test imports this module anew."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import threading
from pathlib import Path
from time import monotonic

from taskmq import App, QueueConfig, Retry, current
from taskmq.testing.signals import PATIENCE

app = App(
    os.environ.get("CREW_URL", "memory://"),
    lease=float(os.environ.get("CREW_LEASE", "30")),
    queues={"small": QueueConfig()},
)
wire = Path(os.environ.get("CREW_WIRE", "."))
kept: list[bytes] = []


def say(*words: object) -> None:
    """Tell the test, in one piece."""
    line = os.open(wire / "said", os.O_WRONLY)
    os.write(line, " ".join(map(str, words)).encode() + b"\n")
    os.close(line)


def pass_through() -> None:
    """Wait until the test opens the gate."""
    gate = os.open(wire / "gate", os.O_RDONLY)
    os.read(gate, 1)
    os.close(gate)


class Wire:
    """The test's ends of the pipes."""

    def __init__(self, folder: Path) -> None:
        for name in ("said", "gate"):
            os.mkfifo(folder / name)
        self._said = os.open(folder / "said", os.O_RDWR)
        self._gate = os.open(folder / "gate", os.O_RDWR)
        self._rest = b""
        self.lines: list[list[str]] = []

    def wait(self, count: int = 1) -> list[list[str]]:
        """So many lines since the first; raises AssertionError when they do not come."""
        end = monotonic() + 2 * PATIENCE
        while len(self.lines) < count:
            if not select.select([self._said], [], [], max(0.0, end - monotonic()))[0]:
                raise AssertionError(f"waited in vain for {count} lines; so far: {self.lines}")
            *lines, self._rest = (self._rest + os.read(self._said, 65536)).split(b"\n")
            self.lines += [line.decode().split() for line in lines]
        return self.lines

    def drained(self) -> list[list[str]]:
        """All lines that are there."""
        while select.select([self._said], [], [], 0)[0]:
            self.wait(len(self.lines) + 1)
        return self.lines

    def open(self, count: int = 1) -> None:
        """Let so many pass."""
        os.write(self._gate, b"." * count)

    def close(self) -> None:
        os.close(self._said)
        os.close(self._gate)


@app.task
def where() -> int:
    return os.getpid()


@app.task
async def awhere() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task
def note(number: int) -> int:
    say("note", number, os.getpid())
    return number


@app.task
def wait(name: str) -> int:
    say(name, os.getpid())
    pass_through()
    return os.getpid()


@app.task(retry=Retry(max_attempts=1))
def once(name: str) -> bool:
    started = app.get(current().task_id).started_at is not None
    say(name, os.getpid(), started)
    return started


@app.task(retry=Retry(max_attempts=2, base=0))
def crash(how: str) -> str:
    if current().attempt > 1:
        return "survived"
    say("crash", os.getpid())
    if how == "null":
        ctypes.string_at(0)
    elif how.startswith("exit"):
        os._exit(int(how[4:]))
    os.kill(os.getpid(), getattr(signal, how))
    raise AssertionError("still there")


@app.task(timeout=0.15, retry=Retry(max_attempts=1))
def hang() -> None:
    say("hang", os.getpid())
    threading.Event().wait()


@app.task(timeout=0.05, retry=Retry(max_attempts=1))
async def ahang(block: bool) -> None:
    say("ahang", os.getpid())
    if block:
        threading.Event().wait()
    await asyncio.Event().wait()


@app.task
def patient(polite: bool) -> str:
    say("patient", os.getpid())
    pause = threading.Event()
    while not (polite and current().cancelled):
        pause.wait(0.005)
    say("saved")
    raise ValueError("stopped half-way")


@app.task
def spread(count: int) -> list[str]:
    return [where.enqueue().id for _ in range(count)]


@app.task
def grow(mib: int) -> int:
    kept.append(b"x" * (mib << 20))
    return os.getpid()


@app.task
def large(size: int) -> str:
    return "x" * size


@app.task
def report(steps: int) -> None:
    for step in range(steps):
        current().progress(step + 1, steps, "half-way" if step * 2 == steps else None)
    say("reported")
    pass_through()


@app.task(retry=Retry(max_attempts=3, base=0))
def stumble(name: str, times: int) -> None:
    say(name, current().attempt)
    if current().attempt <= times:
        raise ValueError("not yet")


@app.on("worker_start")
def started(worker: object) -> None:
    if "CREW_HOOKS" in os.environ:
        say("start", type(worker).__name__, os.getpid())


@app.on("worker_stop")
def stopped(worker: object) -> None:
    if "CREW_HOOKS" in os.environ:
        say("stop", type(worker).__name__, os.getpid())


@app.on("before_run")
def before(context: object) -> None:
    if "CREW_HOOKS" in os.environ:
        say("before", os.getpid())
