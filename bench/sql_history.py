"""PostgreSQL and MariaDB: work beside a million finished tasks against work beside none, and how fast they go.

python -m bench.sql_history [postgresql|postgresql-new|mariadb] [FINISHED TASKS]
"""

from __future__ import annotations

import time

from bench.common import acknowledge, alternate, claim, figure, fill, message, report, seconds
from bench.sql_place import run, server_of, settle_down
from taskmq.testing.sql_fill import fill_history
from taskmq.transport.base import Maintain, Store
from taskmq.transport.registry import open_store

NEVER = 1 << 60


def _cycle(store: Store) -> float:
    """Publish ten, claim ten, settle ten."""

    def all_three() -> None:
        fill(store, 10, lambda i: message())
        acknowledge(store, claim(store, 10))

    return seconds(all_three)


def measure(name: str, finished: int) -> None:
    """Print the figures of one server."""
    server = server_of(name)
    none, many = (server.place(f"history-{shape}") for shape in ("none", "many"))
    fill_history(server, none, "q", 1, NEVER)
    fill_history(server, many, "q", finished, NEVER)
    settle_down(server.url(many))
    stores = [open_store(server.url(place)) for place in (none, many)]
    sides = [lambda store=store: _cycle(store) for store in stores]
    alternate(sides, 20)
    base, beside = alternate(sides, 300)
    shown = (f"{beside * 1e3:.2f} ms", f"{base * 1e3:.2f} ms")
    report(f"{name}, ten tasks beside {finished:,} finished / none, p50", *shown, beside / base, "<= 1.2")
    server.execute("UPDATE taskmq_history SET delete_at=1 WHERE seq<=50000", many)
    longest, deleted, began = 0.0, 0, time.perf_counter()
    more = True
    while more:
        start = time.perf_counter()
        done = stores[1].maintain(Maintain())
        longest = max(longest, time.perf_counter() - start)
        deleted, more = deleted + done.deleted, done.more
    rate = deleted / (time.perf_counter() - began)
    figure(f"{name}, finished tasks deleted", f"{rate:,.0f}/s", rate, ">= 2000")
    figure(f"{name}, the longest of its batches", f"{longest * 1e3:.0f} ms", longest * 1e3, "-")
    for store in stores:
        store.close()


if __name__ == "__main__":
    run(measure, 1_000_000)
