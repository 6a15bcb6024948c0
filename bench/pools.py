"""No-op tasks through the pools asyncio and processes, against the workers of celery, taskiq, arq and saq, in one run.

Ours on a SQLite file with its defaults (``synchronous=FULL``: every settle is on the disk), theirs on a Valkey that
keeps nothing on disk. All get the same machine, two processes or a hundred coroutines, and the settings that are fast
for them: celery prefork with a large prefetch and no results, taskiq with two processes, arq with a short poll, saq
with a hundred places. Tasks are published first; the rate is taken between the handler calls of the tenth and the last
task in a hundred parts, which two tasks note in a file. Sides take turns; medians.

Needs `pip install taskmq[bench]`.

    python -m bench.pools [TASKS] [ROUNDS] [SIDE…]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.common import folder
from bench.valkey import valkey

MARK = """
import asyncio, os, sys, time
TASKS = int(os.environ["TASKS"]); URL = os.environ["URL"]
def mark(number):
    if number in (TASKS // 10, TASKS - 1):
        with open(os.environ["MARKS"], "a") as file: file.write(f"{time.monotonic()}\\n")
"""
OURS = """
from taskmq import App
app = App(URL)
@app.task(name="plain", queue="q")
def plain(number: int) -> None: mark(number)
@app.task(name="cooperative", queue="q")
async def cooperative(number: int) -> None: mark(number)
def fill(task):
    for start in range(0, TASKS, 1000):
        app.enqueue_many([task.message(n) for n in range(start, min(start + 1000, TASKS))])
"""
CELERY = """
from celery import Celery
app = Celery("peer", broker=URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=128, broker_connection_retry_on_startup=True)
@app.task
def noop(number): mark(number)
def fill():
    with app.producer_pool.acquire() as producer:
        for n in range(TASKS): noop.apply_async((n,), producer=producer)
"""
TASKIQ = """
from taskiq_redis import ListQueueBroker
broker = ListQueueBroker(URL)
@broker.task
async def noop(number: int) -> None: mark(number)
async def send():
    await broker.startup()
    for n in range(TASKS): await noop.kiq(n)
    await broker.shutdown()
def fill(): asyncio.run(send())
"""
ARQ = """
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import func
settings = RedisSettings.from_dsn(URL)
async def noop(ctx, number): mark(number)
class WorkerSettings:
    functions = [func(noop, keep_result=0)]
    redis_settings = settings
    max_jobs = 100
    poll_delay = 0.01
async def send():
    pool = await create_pool(settings)
    for n in range(TASKS): await pool.enqueue_job("noop", n)
def fill(): asyncio.run(send())
"""
SAQ = """
from saq import Queue
queue = Queue.from_url(URL)
async def noop(ctx, *, number): mark(number)
settings = {"queue": queue, "functions": [noop], "concurrency": 100}
async def send():
    await queue.connect()
    for n in range(TASKS): await queue.enqueue("noop", number=n)
def fill(): asyncio.run(send())
"""
TASKMQ = [sys.executable, "-m", "taskmq", "worker", "peer:app", "--log-level", "error"]
SIDES: dict[str, tuple[str, str, list[str]]] = {
    "asyncio": (OURS, "fill(cooperative)", [*TASKMQ, "--pool", "asyncio"]),
    "processes": (OURS, "fill(plain)", [*TASKMQ, "--pool", "processes", "--concurrency", "2"]),
    "celery prefork": (
        CELERY,
        "fill()",
        [
            *(sys.executable, "-m", "celery", "-A", "peer", "worker", "-c", "2", "-l", "critical"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ],
    ),
    "taskiq": (
        TASKIQ,
        "fill()",
        [sys.executable, "-m", "taskiq", "worker", "peer:broker", "-w", "2", "--log-level", "ERROR"],
    ),
    "arq": (ARQ, "fill()", [sys.executable, "-m", "arq", "peer.WorkerSettings"]),
    "saq": (SAQ, "fill()", [sys.executable, "-m", "saq", "peer.settings", "--quiet"]),
}
OWN = ("asyncio", "processes")
PATIENCE = 120.0


def rate(side: str, url: str, place: Path, tasks: int) -> float:
    """Tasks a second of one side."""
    program, fill, command = SIDES[side]
    place.mkdir()
    (place / "peer.py").write_text(MARK + program)
    marks = place / "marks"
    marks.touch()
    paths = os.pathsep.join([str(place), str(Path(__file__).resolve().parent.parent)])
    environment = {**os.environ, "TASKS": str(tasks), "URL": url, "MARKS": str(marks), "PYTHONPATH": paths}
    quiet = {"cwd": place, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", f"from peer import *; {fill}"], check=True, **quiet)  # type: ignore[call-overload]
    with subprocess.Popen(command, **quiet) as worker:  # type: ignore[call-overload]
        try:
            end = time.monotonic() + PATIENCE
            while len(lines := marks.read_text().splitlines()) < 2:
                if worker.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{side} did not get through")
                time.sleep(0.01)
        finally:
            worker.terminate()
            try:
                worker.wait(20)
            except subprocess.TimeoutExpired:
                worker.kill()
    first, last = sorted(map(float, lines))
    return 0.9 * tasks / (last - first)


def main(tasks: int, rounds: int, sides: list[str]) -> None:
    """Print the median of each side, and ours over the best of theirs."""
    rates: dict[str, list[float]] = {side: [] for side in sides}
    with folder() as place:
        for number in range(rounds):
            for side in sides:
                home = place / f"{side.split()[0]}{number}"
                if side in OWN:
                    rates[side].append(rate(side, f"sqlite:///{home}/q.db", home, tasks))
                else:
                    with valkey() as url:
                        rates[side].append(rate(side, url, home, tasks // 5))
    medians = {side: statistics.median(figures) for side, figures in rates.items()}
    for side, figures in rates.items():
        spread = f"({min(figures):,.0f} to {max(figures):,.0f})"
        print(f"{side:<16} {medians[side]:>10,.0f}/s   {spread}", flush=True)
    peers = [side for side in sides if side not in OWN]
    if peers:
        best = max(peers, key=lambda side: medians[side])
        for side in OWN:
            if side in medians:
                print(f"{side} / {best}, the best of them: {medians[side] / medians[best]:.1f}   (reach >= 5)")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 20_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else 3,
        [side for side in SIDES if side.split()[0] in sys.argv[3:]] or list(SIDES),
    )
