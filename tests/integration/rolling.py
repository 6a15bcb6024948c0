"""Rolling restarts under load: of two workers the older one is replaced again and again while tasks are published.

Each restart starts a fresh worker process, sends SIGTERM to the older one, and takes the time until the store shows
nothing in its hands any more. At the end every task must have run exactly once (a graceful end repeats nothing that has
been acknowledged, and loses nothing that was held), each at its first attempt, ordered partitions in their order.

    python -m tests.integration.rolling [RESTARTS] [POOL…]
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from taskmq import App, Handle, Retry, TaskState
from taskmq.transport.base import Find

POOLS = ("threads", "solo", "asyncio", "processes")
CODES = 5

app = App(os.environ.get("ROLLING_URL", "memory://"))


def _enter(kind: str, code: str, number: int) -> None:
    ledger = os.open(os.environ["ROLLING_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, f"{kind} {code} {number}\n".encode())
    os.close(ledger)


@app.task
def plain(number: int) -> None:
    _enter("plain", "-", number)
    time.sleep(0.002)


@app.task
async def cooperative(number: int) -> None:
    import asyncio

    _enter("cooperative", "-", number)
    await asyncio.sleep(0.002)


@app.task(retry=Retry(max_attempts=1))
def once(number: int) -> None:
    _enter("once", "-", number)


@app.task
def ordered(code: str, number: int) -> None:
    _enter("ordered", code, number)
    time.sleep(0.001)


@dataclass(frozen=True)
class Report:
    """What a run has shown.

    ``backs``   seconds from each SIGTERM until nothing was in that worker's hands
    ``faults``  in words; there should be none
    """

    tasks: int
    backs: list[float]
    faults: list[str]

    def __str__(self) -> str:
        middle, longest = statistics.median(self.backs), max(self.backs)
        return (
            f"{len(self.backs)} restarts, {self.tasks:,} tasks: all given back or settled after {middle * 1e3:.0f} ms "
            f"(median), {longest * 1e3:.0f} ms (longest); {'; '.join(self.faults) or 'nothing lost, nothing repeated'}"
        )


class Publisher:
    """Publishes a few of each kind every ten milliseconds, until it is stopped."""

    def __init__(self) -> None:
        self.handles: list[Handle[None]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(0.01):
            number += 1
            self.handles += app.enqueue_many(
                [
                    plain.message(number),
                    plain.using(priority=number % 10).message(-number),
                    cooperative.message(number),
                    once.message(number),
                    *(
                        ordered.using(ordered_by=f"c{number % CODES}").message(f"c{number % CODES}", n)
                        for n in (2 * number, 2 * number + 1)
                    ),
                ]
            )

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def start(pool: str, name: str) -> subprocess.Popen[str]:
    """A worker process; returns when it works."""
    command = [sys.executable, "-m", "tests.integration.rolling", "--worker", pool, name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "works\n":
        raise AssertionError(f"worker {name} did not start")
    return process


def end(process: subprocess.Popen[str], name: str) -> float:
    """SIGTERM; seconds until it has nothing in its hands."""
    process.send_signal(signal.SIGTERM)
    began = perf_counter()
    while any(task.worker == name for task in app.store.find(Find(states=(TaskState.RUNNING,), limit=1000)).tasks):
        time.sleep(0.002)
    took = perf_counter() - began
    if process.wait(60) != 0:
        raise AssertionError(f"worker {name} ended with code {process.returncode}")
    assert process.stdout is not None
    process.stdout.close()
    return took


def roll(pool: str, restarts: int) -> Report:
    """So many restarts of workers of this pool, on the store and ledger that the environment names."""
    publisher = Publisher()
    backs = []
    try:
        older = start(pool, "w0"), "w0"
        for number in range(1, restarts + 1):
            newer = start(pool, f"w{number}"), f"w{number}"
            backs.append(end(*older))
            older = newer
    finally:
        publisher.stop()
    last_of_all = [handle.id for handle in publisher.handles]
    deadline = perf_counter() + 60
    while perf_counter() < deadline and any(stats.ready + stats.running for stats in app.store.stats()):
        time.sleep(0.02)
    end(*older)
    return Report(len(last_of_all), backs, _faults(last_of_all))


def _faults(ids: list[str]) -> list[str]:
    found = []
    tasks = [task for start in range(0, len(ids), 500) for task in app.store.get(ids[start : start + 500])]
    states = Counter("gone" if task is None else str(task.state) for task in tasks)
    if set(states) != {"SUCCEEDED"}:
        found.append(f"states {dict(states)}")
    again = sum(task is not None and task.attempt != 1 for task in tasks)
    if again:
        found.append(f"{again} tasks have more than one attempt")
    lines = Path(os.environ["ROLLING_LEDGER"]).read_text().splitlines()
    repeated = [line for line, times in Counter(lines).items() if times > 1]
    if repeated or len(lines) != len(ids):
        found.append(f"{len(ids)} tasks, {len(lines)} executions, repeated: {repeated[:5]}")
    order: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        kind, code, number = line.split()
        if kind == "ordered":
            order[code].append(int(number))
    found += [f"partition {code} out of order" for code, numbers in order.items() if numbers != sorted(numbers)]
    return found


def work(pool: str, name: str) -> int:
    """The life of a worker process."""

    @app.on("worker_start")
    def say(worker: object) -> None:
        os.write(1, b"works\n")

    options = {} if pool == "solo" else {"concurrency": 2 if pool == "processes" else 8}
    return app.run_worker(pool=pool, name=name, grace=60, **options)


def main(restarts: int, pools: list[str]) -> int:
    """Roll workers of each pool; 1 if anything was lost, repeated or out of order."""
    bad = 0
    for pool in pools:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.integration.rolling", "--roll", pool, str(restarts)]
            places = {"ROLLING_URL": f"sqlite:///{folder}/q.db", "ROLLING_LEDGER": f"{folder}/ledger"}
            ran = subprocess.run(command, env={**os.environ, **places}, text=True, check=False)
            bad |= ran.returncode
    return bad


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.exit(work(*sys.argv[2:4]))
    if sys.argv[1:2] == ["--roll"]:
        with app:
            report = roll(sys.argv[2], int(sys.argv[3]))
        sys.stdout.write(f"{sys.argv[2]:<10} {report}\n")
        sys.exit(bool(report.faults))
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2:] or list(POOLS)))
