"""PostgreSQL and MariaDB: from before ``enqueue`` to the handler's first line in an idle worker's process.

Lone tasks 30 ms apart, published by this process; beside it what the worker's process costs while it idles.

    python -m bench.sql_start [postgresql|postgresql-new|mariadb] [TASKS]
"""

from __future__ import annotations

from bench.common import figure, folder
from bench.idle import other_process
from bench.sql_place import run, url_of

IDLE = 10.0
"""Seconds."""


def measure(server: str, tasks: int) -> None:
    """Print the delay, what of it is the publish, and the idle share."""
    with folder() as place:
        share, delays, publishes = other_process(place, url_of(server, "start"), "threads", IDLE, tasks)
    half, late = sorted(delays)[tasks // 2] * 1e3, sorted(delays)[tasks * 99 // 100] * 1e3
    figure(f"{server}: enqueue to start, p50", f"{half:.2f} ms", half, "<= 50" if server == "mariadb" else "<= 5")
    figure(f"{server}: enqueue to start, p99", f"{late:.2f} ms", late, "-")
    figure(f"{server}: of it enqueue, p50", f"{sorted(publishes)[tasks // 2] * 1e3:.2f} ms", 0, "-")
    figure(f"{server}: processor of the idle worker", f"{share * 100:.2f} %", share * 100, "< 2")


if __name__ == "__main__":
    run(measure, 300)
