"""PostgreSQL and MariaDB: does a claim become slower while a million tasks come and go?

A backlog of 20,000 stays; each round publishes 51 tasks, claims and settles fifty, and then one more, whose claim is
timed. Medians of each eighth of the run. PostgreSQL keeps its own house with the
storage parameters of the migration; on a run as short as this its autovacuum is let look every five seconds.

    python -m bench.sql_steady [postgresql|postgresql-new|mariadb] [TASKS]
"""

from __future__ import annotations

import statistics
import time

from bench.common import acknowledge, claim, fill, message, report, seconds
from bench.sql_place import run, settle_down, url_of
from taskmq.message import Delivery
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.registry import open_store

BACKLOG, BATCH, PARTS = 20_000, 50, 8


def measure(server: str, tasks: int) -> None:
    """Print the last eighth against the first, and all of them."""
    if server != "mariadb":
        postgres_server(server).execute("ALTER SYSTEM SET autovacuum_naptime=5")
        postgres_server(server).execute("SELECT pg_reload_conf()")
    url = url_of(server, "steady")
    store = open_store(url)
    fill(store, BACKLOG, lambda i: message())
    settle_down(url)
    rounds = tasks // (BATCH + 1)
    times: list[float] = []
    began = time.perf_counter()
    for _ in range(rounds):
        fill(store, BATCH + 1, lambda i: message())
        acknowledge(store, claim(store, BATCH))
        held: list[Delivery] = []
        times.append(seconds(lambda held=held: held.extend(claim(store, 1))))  # type: ignore[misc]
        acknowledge(store, held)
    rate = rounds * (BATCH + 1) / (time.perf_counter() - began)
    part = rounds // PARTS
    medians = [statistics.median(times[start : start + part]) * 1e3 for start in range(0, part * PARTS, part)]
    name = f"{server}: claim of 1 in steady state, last eighth / first"
    report(name, f"{medians[-1]:.3f} ms", f"{medians[0]:.3f} ms", medians[-1] / medians[0], "<= 1.3")
    print(f"{'':<58} each eighth {' '.join(f'{median:.2f}' for median in medians)} ms; {rate:,.0f} tasks/s", flush=True)
    store.close()


if __name__ == "__main__":
    run(measure, 1_000_000)
