"""SQLite: claim and settle with a million active ordered partitions against ten.

At synchronous=NORMAL, where no disk wait hides what the number of partitions costs.

python -m bench.partition_scale [PARTITIONS]
"""

from __future__ import annotations

import sys
from time import perf_counter

from bench.common import acknowledge, alternate, claim, fill, folder, message, report
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store

BATCH = 10
CLAIMS = 20


def rate(store: Store) -> float:
    """Tasks claimed and settled in a second, over some claims of ten."""
    start = perf_counter()
    done = 0
    for _ in range(CLAIMS):
        held = claim(store, BATCH)
        acknowledge(store, held)
        done += len(held)
    return done / (perf_counter() - start)


def main(partitions: int) -> None:
    """Print the rate with ``partitions`` partitions of one task, and with ten that share as many."""
    with folder() as place:
        ten = open_store(f"sqlite:///{place}/ten.db?synchronous=normal")
        fill(ten, partitions, lambda i: message(partition=f"!p{i % 10}"))
        many = open_store(f"sqlite:///{place}/many.db?synchronous=normal")
        fill(many, partitions, lambda i: message(partition=f"!p{i}"))
        sides = [lambda: rate(many), lambda: rate(ten)]
        alternate(sides, 3)
        ours, theirs = alternate(sides, 40)
        name = f"claim+settle by {BATCH}: {partitions:,} ordered partitions / 10"
        report(name, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, ">= 0.7")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
