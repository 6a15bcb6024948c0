"""SQLite: four worker processes on one file. Do they get in each other's way, and how long does a publisher wait?

Each worker is a process of its own with the threads pool; beside them one process publishes single tasks and times each
call. Whatever a worker or the publisher complains about is counted.

python -m bench.sqlite_processes [TASKS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.common import fill, folder, message, report
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store

WORKER = """
import logging, sys
from taskmq import App
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
app = App(sys.argv[1])
@app.task(name="h", queue="q")
def noop(text): pass
sys.exit(app.run_worker(concurrency=4))
"""
PUBLISHER = """
import json, sys, time
from taskmq import App
app = App(sys.argv[1])
ref = app.ref("other", queue="beside")
waits = []; end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    start = time.perf_counter(); ref.enqueue("x"); waits.append(time.perf_counter() - start)
waits.sort()
print(json.dumps([len(waits), waits[len(waits) // 2], waits[-1]]))
"""


def drained(store: Store) -> bool:
    """Whether the queue has nothing left."""
    (stats,) = store.stats(["q"])
    return not (stats.ready or stats.running)


def run(place: Path, tasks: int, workers: int) -> tuple[float, list[float], int]:
    """Tasks a second of so many workers, the publisher's [calls, p50, longest], and the number of complaints."""
    url = f"sqlite:///{place}"
    store = open_store(url)
    fill(store, tasks, lambda i: message())
    start = store.stats(["q"])[0].ready
    processes = [
        subprocess.Popen([sys.executable, "-c", WORKER, url], stderr=subprocess.PIPE, text=True) for _ in range(workers)
    ]
    while len(store.workers()) < workers:
        time.sleep(0.01)
    beside = subprocess.Popen([sys.executable, "-c", PUBLISHER, url, "2"], stdout=subprocess.PIPE, text=True)
    left, begin = store.stats(["q"])[0].ready, time.perf_counter()
    while not drained(store):
        time.sleep(0.02)
    took = time.perf_counter() - begin
    published = json.loads(beside.communicate()[0])
    for process in processes:
        process.terminate()
    complaints = sum(len(process.communicate()[1].splitlines()) for process in processes)
    assert left > start / 2, "the workers were done before they had all started: give more tasks"
    store.close()
    return left / took, published, complaints


def main(tasks: int) -> None:
    """Print one process, four, and what the publisher saw; the median of three."""
    with folder() as place:
        rounds = [
            (run(place / f"one{number}.db", tasks, 1), run(place / f"four{number}.db", tasks, 4)) for number in range(3)
        ]
        one = sorted(side[0][0] for side in rounds)[1]
        four = sorted(side[1][0] for side in rounds)[1]
        longest = max(side[1][1][2] for side in rounds)
        complaints = sum(side[number][2] for side in rounds for number in (0, 1))
        report("four worker processes / one, no-op", f"{four:,.0f}/s", f"{one:,.0f}/s", four / one, ">= 1")
        report("longest single enqueue beside them", f"{longest * 1e3:.0f} ms", "500 ms", longest / 0.5, "<= 1")
        report("lines that workers complained", str(complaints), "0", complaints, "<= 0")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000)
