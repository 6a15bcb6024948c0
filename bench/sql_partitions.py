"""PostgreSQL and MariaDB: claim and settle by ten with very many ordered partitions, and before very many followers.

A million partitions with one task each, one partition with a million tasks, and for both the same number of tasks in
ten partitions. The one partition gives one task at a time, and runs of ten where it stands alone.

    python -m bench.sql_partitions [postgresql|postgresql-new|mariadb] [PARTITIONS]
"""

from __future__ import annotations

from bench.common import alternate, fill, message, report, work_off
from bench.sql_place import run, settle_down, url_of
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store

BATCH = 10
ROUNDS = 7


def partitioned(server: str, tasks: int, partitions: int) -> Store:
    """A store with so many tasks in so many ordered partitions."""
    url = url_of(server, f"partitions-{partitions}")
    store = open_store(url)
    fill(store, tasks, lambda i: message(partition=f"!{i % partitions}"))
    settle_down(url)
    return store


def measure(server: str, many: int) -> None:
    """Print both ratios."""
    few = partitioned(server, many, 10)
    tasks = min(2000, many // 20) // BATCH * BATCH
    shapes = ((f"{many:,} ordered partitions", many), (f"one partition with {many:,} followers", 1))
    for name, partitions in shapes:
        store = partitioned(server, many, partitions)
        sides = [lambda s=store: work_off(s, tasks, BATCH), lambda: work_off(few, tasks, BATCH)]  # type: ignore[misc]
        alternate(sides, 1)
        ours, base = alternate(sides, ROUNDS)
        report(f"{server}: {name} / 10", f"{ours:,.0f}/s", f"{base:,.0f}/s", ours / base, ">= 0.7")
        store.close()
    few.close()


if __name__ == "__main__":
    run(measure, 1_000_000)
