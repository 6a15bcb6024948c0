"""SQLite: a worker with a handler that does nothing against huey's SQLite consumer with eight threads.

Needs huey (pip install huey). Both run in a process of their own; the handler counts and takes the time.

    python -m bench.worker_huey [TASKS]
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.common import folder, report

OURS = """
import sys
from bench.worker_noop import worker
import json; print(json.dumps(worker(sys.argv[1], int(sys.argv[2]), "threads")[0]))
"""
THEIRS = """
import logging, os, sys, threading
from time import perf_counter
from huey import SqliteHuey
logging.disable(logging.CRITICAL)
tasks = int(sys.argv[2]); huey = SqliteHuey("bench", filename=sys.argv[1]); marks = []; count = 0
@huey.task()
def noop():
    global count
    count += 1
    if count in (tasks // 10, tasks):
        marks.append(perf_counter())
        if count == tasks: print(0.9 * tasks / (marks[1] - marks[0]), flush=True); os._exit(0)
for _ in range(tasks): noop()
huey.create_consumer(workers=8, worker_type="thread", check_worker_health=False).run()
"""


def run(code: str, place: str, tasks: int) -> float:
    """Tasks a second of one side in a fresh process."""
    return float(json.loads(subprocess.check_output([sys.executable, "-c", code, place, str(tasks)], text=True)))


def main(tasks: int) -> None:
    """Print both, the median of three."""
    with folder() as place:
        ours, theirs = [], []
        for number in range(3):
            ours.append(run(OURS, f"sqlite:///{place}/ours{number}.db", tasks))
            theirs.append(run(THEIRS, f"{place}/huey{number}.db", tasks // 5))
        fast, slow = sorted(ours)[1], sorted(theirs)[1]
        report("worker, no-op, one process / huey's consumer", f"{fast:,.0f}/s", f"{slow:,.0f}/s", fast / slow, ">= 10")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
