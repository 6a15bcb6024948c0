"""SQLite at synchronous=FULL: enqueue() from sixteen threads against one; callers that come together share a commit.

python -m bench.group_commit
"""

from __future__ import annotations

import threading
from time import perf_counter

from bench.common import alternate, folder, report
from taskmq import App

CALLS = 2000


def rate(app: App, threads: int) -> float:
    """Tasks enqueued in a second, one call each."""
    send = app.ref("send", queue="q")

    def work() -> None:
        for _ in range(CALLS // threads):
            send.enqueue("x" * 96)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    start = perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return CALLS // threads * threads / (perf_counter() - start)


def main() -> None:
    """Print both rates."""
    with folder() as place, App(f"sqlite:///{place}/q.db") as app:
        sides = [lambda: rate(app, 16), lambda: rate(app, 1)]
        alternate(sides, 1)
        many, one = alternate(sides, 9)
        report("enqueue() at FULL: 16 threads / 1 thread", f"{many:,.0f}/s", f"{one:,.0f}/s", many / one, ">= 3")


if __name__ == "__main__":
    main()
