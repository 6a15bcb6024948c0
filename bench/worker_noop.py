"""A worker with a handler that does nothing, against the bare reserve+settle loop on the same store, in one run.

The rate is taken between the tenth and the last call of the handler, so start-up does not count; the worker's
processor time is taken over the same stretch.

    python -m bench.worker_noop [memory|sqlite|redis|valkey] [TASKS]
"""

from __future__ import annotations

import sys
from time import perf_counter, process_time

from bench.common import figure, folder, report, store_url
from taskmq import App
from taskmq.outcome import Ack
from taskmq.transport.base import Reserve, Settle, Settlement

BARE_BATCH = 128
Figure = tuple[float, float]
"""Tasks a second, microseconds of processor a task."""


def filled(url: str, tasks: int) -> tuple[App, list[float]]:
    """An app with so many no-op tasks, and the list to which its handler appends nothing but marks."""
    app = App(url)
    marks: list[float] = []
    count = 0

    @app.task(name="noop", queue="q")
    def noop() -> None:
        nonlocal count
        count += 1
        if count in (tasks // 10, tasks):
            marks.extend((perf_counter(), process_time()))

    for start in range(0, tasks, 1000):
        app.enqueue_many([noop.message() for _ in range(min(1000, tasks - start))])
    return app, marks


def worker(url: str, tasks: int, pool: str) -> Figure:
    """The worker's rate and processor time."""
    app, marks = filled(url, tasks)
    with app, app.worker(queues=["q"], concurrency=1 if pool == "solo" else 8, pool=pool) as running:
        running.drain()
    wall, cpu = marks[2] - marks[0], marks[3] - marks[1]
    return 0.9 * tasks / wall, cpu / (0.9 * tasks) * 1e6


def bare(url: str, tasks: int) -> Figure:
    """The rate of a loop that only reserves and settles."""
    app, _ = filled(url, tasks)
    reserve = Reserve(queues=["q"], limit=BARE_BATCH, worker="bare")
    with app:
        store = app.store
        held = store.reserve(reserve).deliveries
        wall, cpu, done = perf_counter(), process_time(), 0
        while held:
            done += len(held)
            settle = Settle(items=[Settlement(delivery, Ack()) for delivery in held])
            held = store.settle_and_reserve(settle, reserve)[1].deliveries
        return done / (perf_counter() - wall), (process_time() - cpu) / done * 1e6


def main(stores: list[str], tasks: int) -> None:
    """Print worker and bare loop for each store, the median of five runs each."""
    with folder() as place:
        for store in stores:
            urls = (store_url(store, place, number) for number in range(10**6))
            figures: dict[str, list[Figure]] = {"bare": [], "threads": [], "solo": []}
            for _ in range(5):
                figures["bare"].append(bare(next(urls), tasks))
                for pool in ("threads", "solo"):
                    figures[pool].append(worker(next(urls), tasks, pool))
            rates = {side: sorted(rate for rate, _ in runs)[2] for side, runs in figures.items()}
            cpus = {side: sorted(cpu for _, cpu in runs)[2] for side, runs in figures.items()}
            for pool in ("threads", "solo"):
                name = f"{store}: worker ({pool}) / bare loop"
                report(name, f"{rates[pool]:,.0f}/s", f"{rates['bare']:,.0f}/s", rates[pool] / rates["bare"], ">= 0.6")
                extra = cpus[pool] - cpus["bare"]
                name = f"{store}: processor a task ({pool}), over the bare loop's {cpus['bare']:.1f} µs"
                figure(name, f"{extra:.1f} µs more", extra, "<= 8")
                if store in ("redis", "valkey"):
                    figure(f"{store}: processor a task ({pool})", f"{cpus[pool]:.1f} µs", cpus[pool], "<= 12")


if __name__ == "__main__":
    main(
        sys.argv[1].split(",") if len(sys.argv) > 1 else ["memory", "sqlite"],
        int(sys.argv[2]) if len(sys.argv) > 2 else 30_000,
    )
