"""How late does an urgent task start behind a flood, with prefetch and without?

Eight threads work through tasks of 0.1 ms and 50 ms; every 10 to 30 ms another thread publishes a task of priority
9. *random*: one in twenty is long. *phases*: 2,000 short, then 200 long, and again. Forecasts go wrong exactly where a
phase changes.

    python -m bench.urgent [memory|sqlite|redis|valkey] [SECONDS]
"""

from __future__ import annotations

import random
import statistics
import sys
from time import perf_counter, sleep

from bench.common import folder, report, store_url
from taskmq import App


def lateness(url: str, mix: str, prefetch: int | str, duration: float) -> list[float]:
    """Seconds from publish to start of the urgent tasks."""
    app = App(url)
    starts: dict[int, float] = {}

    @app.task(name="work", queue="q", priority=5)
    def work(length: float) -> None:
        if length > 0.001:
            sleep(length)
        else:
            end = perf_counter() + length
            while perf_counter() < end:
                pass

    @app.task(name="urgent", queue="q", priority=9)
    def urgent(number: int) -> None:
        starts[number] = perf_counter()

    rng = random.Random(7)
    total = round(duration * (3000 if mix == "random" else 1600)) + 3000
    lengths = [_length(mix, i, rng) for i in range(total)]
    for start in range(0, total, 1000):
        app.enqueue_many([work.message(length) for length in lengths[start : start + 1000]])
    published: dict[int, float] = {}
    with app, app.worker(queues=["q"], concurrency=8, prefetch=prefetch):
        sleep(0.3)
        end = perf_counter() + duration
        while perf_counter() < end:
            sleep(rng.uniform(0.01, 0.03))
            number = len(published)
            published[number] = perf_counter()
            urgent.enqueue(number)
        sleep(0.3)
    return [starts[number] - at for number, at in published.items() if number in starts]


def _length(mix: str, i: int, rng: random.Random) -> float:
    if mix == "random":
        return 0.05 if rng.random() < 0.05 else 0.0001
    return 0.0001 if i % 2200 < 2000 else 0.05


def main(store: str, duration: float) -> None:
    """Print p99, largest and median lateness for both mixes, in a process set up as ``taskmq worker`` is."""
    sys.setswitchinterval(0.001)
    with folder() as place:
        number = 0
        for mix in ("random", "phases"):
            figures: dict[object, list[list[float]]] = {"auto": [], 0: []}
            for _ in range(3):
                for prefetch, runs in figures.items():
                    number += 1
                    url = store_url(store, place, number)
                    runs.append(lateness(url, mix, prefetch, duration))  # type: ignore[arg-type]
            for what, pick in (
                ("p99", lambda times: sorted(times)[int(len(times) * 0.99) - 1]),
                ("max", max),
                ("p50", statistics.median),
            ):
                ours, theirs = (statistics.median(pick(run) for run in figures[side]) for side in ("auto", 0))
                reach = "<= 1.2" if what != "p50" else "-"
                report(
                    f"{store}, {mix}: urgent {what}, prefetch auto / none",
                    f"{ours * 1e3:.1f} ms",
                    f"{theirs * 1e3:.1f} ms",
                    ours / theirs,
                    reach,
                )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sqlite", float(sys.argv[2]) if len(sys.argv) > 2 else 4.0)
