"""Does a worker grow? A million no-op tasks through one worker process, on a SQLite file; its memory on the way.

After each tenth of the tasks the handler notes the memory of the process it runs in: what is its own, in memory or
swapped out (pages of libraries come and go as the kernel likes, and say nothing about growth); with the pool processes,
of the worker and its child together. Tasks are published by another process while the worker works, never more than
twenty thousand ahead.

    python -m bench.rss [TASKS] [POOL…]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from time import monotonic

from bench.common import folder
from taskmq import App

PROGRAM = """
import os
from bench.rss import own_memory
from taskmq import App
app = App(os.environ["URL"])
tasks, count = int(os.environ["TASKS"]), 0
def weigh():
    global count
    count += 1
    if count % (tasks // 10) == 0:
        os.write(1, b"%d\\n" % own_memory(os.getpid()))
@app.task(name="noop", queue="q", retention=0)
def noop() -> None: weigh()
@app.task(name="anoop", queue="q", retention=0)
async def anoop() -> None: weigh()
"""
AHEAD = 20_000
WARM = 1_000


def own_memory(pid: int) -> int:
    """KiB that are a process's own, in memory or swapped out."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(status[name].split()[0]) for name in ("RssAnon", "VmSwap"))


def grow(place: Path, pool: str, tasks: int) -> tuple[list[float], float]:
    """MiB after each tenth, and tasks a second."""
    place.mkdir()
    (place / "program.py").write_text(PROGRAM)
    url = f"sqlite:///{place}/q.db?synchronous=normal"
    root = str(Path(__file__).resolve().parent.parent)
    paths = os.pathsep.join([str(place), root])
    environment = {**os.environ, "URL": url, "TASKS": str(tasks), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "taskmq", "worker", "program", "--pool", pool, "--log-level", "error"]
    if pool == "processes":
        command += ["--concurrency", "1"]  # one child, so that one process runs all
    with App(url) as app, subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        task = app.ref("anoop" if pool == "asyncio" else "noop", queue="q")
        while not app.store.workers():
            time.sleep(0.05)
        for _ in range(WARM):  # one by one, so that each of its threads has run, and has been idle
            task.enqueue()
            time.sleep(0.002)
        began = monotonic()
        for _ in range(WARM, tasks + AHEAD, 1000):  # more than are counted: the last tenth is under load as well
            while app.store.stats(["q"]) and app.store.stats(["q"])[0].ready > AHEAD:
                time.sleep(0.05)
            app.enqueue_many([task.message() for _ in range(1000)])
        sizes = []
        for _ in range(10):
            size = int(worker.stdout.readline())
            sizes.append((size + (own_memory(worker.pid) if pool == "processes" else 0)) / 2**10)
        took = monotonic() - began
        worker.terminate()
    return sizes, tasks / took


def main(tasks: int, pools: list[str]) -> None:
    """Print both figures for each pool."""
    with folder() as place:
        for pool in pools:
            sizes, rate = grow(place / pool, pool, tasks)
            first, last = sizes[0], sizes[-1]
            print(
                f"{pool:<10} {first:6.1f} MiB after {tasks // 10:,}, {last:6.1f} MiB after {tasks:,}: "
                f"{(last / first - 1) * 100:+.1f} % (reach < 5), {rate:,.0f} tasks/s; "
                f"each tenth: {' '.join(f'{size:.1f}' for size in sizes)}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, sys.argv[2:] or ["threads"])
