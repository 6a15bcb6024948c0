"""What an idle worker costs, and how soon it starts what is published: SQLite file, one lone task at a time.

The processor share is that of a ``taskmq worker`` with nothing to do (user and system time of its process). The delay
runs from before ``enqueue`` to the handler's first line, once from another process, where SQLite's worker has to look,
and once from the same process, where it is told. What publishing alone takes is shown beside it: on a disk most of the
delay is two commits, that of the publish and that of the claim.

    python -m bench.idle [SECONDS] [TASKS] [POOL…]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from time import monotonic

from bench.common import folder
from taskmq import App

PROGRAM = """
import os, sys, time
from taskmq import App
app = App(os.environ["URL"])
@app.task(name="start", queue="q")
def start() -> None: os.write(1, b"%d\\n" % time.monotonic_ns())
"""
TICK = os.sysconf("SC_CLK_TCK")


def cpu(pid: int) -> float:
    """Seconds of processor that a process and its children-to-be have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def other_process(
    place: Path, url: str, pool: str, duration: float, tasks: int, workers: int = 1
) -> tuple[float, list[float], list[float]]:
    """The idle share of a worker process, the delays, and what each publish took; with so many such processes."""
    place.mkdir(exist_ok=True)
    (place / "program.py").write_text(PROGRAM)
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "URL": url, "PYTHONPATH": os.pathsep.join([str(place), root])}
    command = [sys.executable, "-m", "taskmq", "worker", "program", "--pool", pool, "--log-level", "error"]
    out, into = os.pipe()
    delays, publishes = [], []
    with App(url) as app, os.fdopen(out) as starts:
        crowd = [subprocess.Popen(command, cwd=place, env=environment, stdout=into) for _ in range(workers)]
        os.close(into)
        try:
            task = app.ref("start", queue="q")
            while len(app.store.workers()) < workers:
                time.sleep(0.05)
            task.enqueue()
            starts.readline()
            time.sleep(1.5)  # what a start brings is over
            before, began = sum(cpu(worker.pid) for worker in crowd), monotonic()
            time.sleep(duration)
            share = (sum(cpu(worker.pid) for worker in crowd) - before) / (monotonic() - began) / workers
            for _ in range(tasks):
                time.sleep(0.03)
                at = time.monotonic_ns()
                task.enqueue()
                publishes.append((time.monotonic_ns() - at) / 1e9)
                delays.append((int(starts.readline()) - at) / 1e9)
        finally:
            for worker in crowd:
                worker.terminate()
            for worker in crowd:
                worker.wait()
    return share, delays, publishes


def same_process(url: str, pool: str, tasks: int) -> list[float]:
    """The delays within one process."""
    delays: list[float] = []
    with App(url) as app:

        @app.task(name="start", queue="q")
        def start(at: int) -> None:
            delays.append((time.monotonic_ns() - at) / 1e9)

        with app.worker(pool=pool, **({} if pool == "solo" else {"concurrency": 8})) as worker:
            for _ in range(tasks):
                time.sleep(0.03)
                start.enqueue(time.monotonic_ns())
            worker.drain(10)
    return delays


def main(duration: float, tasks: int, pools: list[str]) -> None:
    """Print share and medians for each pool."""
    with folder() as place:
        for pool in pools:
            share, other, publish = other_process(
                place / f"{pool}1", f"sqlite:///{place}/{pool}1.db", pool, duration, tasks
            )
            print(f"{pool:<10} idle {share * 100:5.2f} % of a core   (reach < 1)")
            apart, alone = statistics.median(other), statistics.median(publish)
            print(
                f"{'':<10} publish to start, another process, p50 {apart * 1e3:6.2f} ms   (reach <= 5); "
                f"publishing alone {alone * 1e3:.2f} ms"
            )
            if pool != "processes":
                (place / f"{pool}2").mkdir()
                file = f"sqlite:///{place}/{pool}2"
                stores = {"FULL": f"{file}/full.db", "NORMAL": f"{file}/normal.db?synchronous=normal"}
                for name, url in {**stores, "memory": "memory://"}.items():
                    same = statistics.median(same_process(url, pool, tasks))
                    print(
                        f"{'':<10} publish to start, same process, {name}, p50 {same * 1e3:6.2f} ms   (reach <= 1)",
                        flush=True,
                    )


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 20.0,
        int(sys.argv[2]) if len(sys.argv) > 2 else 150,
        sys.argv[3:] or ["threads"],
    )
