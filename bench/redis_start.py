"""Redis: from before ``enqueue`` to the handler's first line in an idle worker's process, and what idling costs.

One worker process, then sixteen on the same queue; lone tasks 30 ms apart, published by this process. The processor
share is a worker's of its own, user and system time. Beside them what a bare PING takes after the same rest: an idle
machine answers later, and three such round trips are in a start.

    python -m bench.redis_start [redis|valkey] [TASKS] [SECONDS] [WORKERS…]
"""

from __future__ import annotations

import sys
import time
from statistics import median

from bench.common import figure, folder
from bench.idle import other_process
from bench.place import DEFAULT, Place


def ping(place: Place, rest: float, count: int = 100) -> float:
    """Median milliseconds of a PING after so many seconds without anything to do."""
    times = []
    for _ in range(count):
        time.sleep(rest)
        started = time.perf_counter()
        place.raw.command("PING")
        times.append(time.perf_counter() - started)
    return 1e3 * median(times)


def main(kind: str, tasks: int, duration: float, crowds: list[int]) -> None:
    """Print three figures for each number of workers."""
    place = Place(kind)  # type: ignore[arg-type]
    for rest in (0.0, 0.001, 0.03):
        print(
            f"{f'{kind}: a bare PING after {rest * 1e3:g} ms of rest, p50':<58} {ping(place, rest):.3f} ms", flush=True
        )
    with folder() as home:
        for workers in crowds:
            place.empty()
            share, delays, publishes = other_process(home, place.url(), "threads", duration, tasks, workers)
            delays.sort()
            half, most = delays[tasks // 2] * 1e3, delays[tasks * 99 // 100] * 1e3
            name = f"{kind}: enqueue to start, {workers} idle worker" + "s" * (workers > 1)
            figure(f"{name}, p50", f"{half:.2f} ms", half, "<= 1")
            figure(f"{name}, p99", f"{most:.2f} ms", most, "<= 5")
            figure(f"{kind}: processor of each, idle", f"{share * 100:.2f} %", share * 100, "< 1")
            print(f"{'':<58} of it enqueue, p50 {sorted(publishes)[tasks // 2] * 1e3:.2f} ms", flush=True)


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else DEFAULT,
        int(sys.argv[2]) if len(sys.argv) > 2 else 500,
        float(sys.argv[3]) if len(sys.argv) > 3 else 10.0,
        [int(arg) for arg in sys.argv[4:]] or [1, 16],
    )
