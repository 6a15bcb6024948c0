"""PostgreSQL and MariaDB: a claim by capability among others' tasks, against a queue that has nothing else in it.

python -m bench.sql_capabilities [postgresql|postgresql-new|mariadb] [FOREIGN TASKS]
"""

from __future__ import annotations

from bench.common import alternate, report, seconds
from bench.sql_place import run, server_of, settle_down
from taskmq.message import Delivery
from taskmq.outcome import Ack
from taskmq.testing.sql_fill import fill_tasks
from taskmq.transport.base import Reserve, Settle, Settlement, Store
from taskmq.transport.registry import open_store

OWN, ROUNDS = 20_000, 200


def _one_claim(store: Store, n: int) -> float:
    """The time of one claim of ``h``; what it took is settled."""
    held: list[Delivery] = []
    params = Reserve(queues=["q"], limit=n, worker="w", handlers=[("h", "")])
    took = seconds(lambda: held.extend(store.reserve(params).deliveries))
    assert len(held) == n
    store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in held]))
    return took


def measure(name: str, foreign: int) -> None:
    """Print the ratios of one server."""
    server = server_of(name)
    alone, mixed, ahead = (server.place(f"capabilities-{shape}") for shape in ("alone", "mixed", "ahead"))
    fill_tasks(server, alone, "q", OWN)
    fill_tasks(server, mixed, "q", max(2 * OWN, foreign // 5), ("other", "h"))
    fill_tasks(server, ahead, "q", foreign, ("other",))
    fill_tasks(server, ahead, "q", OWN)
    urls = [server.url(place) for place in (alone, mixed, ahead)]
    for url in urls:
        settle_down(url)
    stores = [open_store(url) for url in urls]
    for n in (1, 10, 50):
        sides = [lambda store=store, n=n: _one_claim(store, n) for store in stores]
        alternate(sides, 10)
        base, among, behind = alternate(sides, ROUNDS if n < 50 else ROUNDS // 2)
        for what, value in (("every other one foreign", among), (f"behind {foreign:,} foreign ones", behind)):
            shown = (f"{value * 1e3:.3f} ms", f"{base * 1e3:.3f} ms")
            report(f"{name}, claim of {n}, p50: {what} / alone", *shown, value / base, "<= 1.5")
    for store in stores:
        store.close()


if __name__ == "__main__":
    run(measure, 1_000_000)
