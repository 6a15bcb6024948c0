"""PostgreSQL and MariaDB: a claim by capability among others' tasks, against a queue that has nothing else in it.

python -m bench.sql_capabilities [postgresql|postgresql-new|mariadb] [FOREIGN TASKS]
"""

from __future__ import annotations

import sys

from bench.common import alternate, report, seconds
from bench.sql_store import SERVERS
from taskmq.message import Delivery
from taskmq.outcome import Ack
from taskmq.testing.mariadb_server import mariadb_server
from taskmq.testing.sql_fill import Server, fill_tasks
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.base import Reserve, Settle, Settlement, Store
from taskmq.transport.registry import open_store

OWN, ROUNDS = 20_000, 200


def server_of(name: str) -> Server:
    """The server of this name."""
    return mariadb_server() if name == "mariadb" else postgres_server(name)


def _one_claim(store: Store, n: int) -> float:
    """The time of one claim of ``h``; what it took is settled."""
    held: list[Delivery] = []
    params = Reserve(queues=["q"], limit=n, worker="w", handlers=[("h", "")])
    took = seconds(lambda: held.extend(store.reserve(params).deliveries))
    assert len(held) == n
    store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in held]))
    return took


def main(name: str, foreign: int) -> None:
    """Print the ratios of one server."""
    server = server_of(name)
    alone, mixed, ahead = (server.place(f"capabilities-{shape}") for shape in ("alone", "mixed", "ahead"))
    fill_tasks(server, alone, "q", OWN)
    fill_tasks(server, mixed, "q", max(2 * OWN, foreign // 5), ("other", "h"))
    fill_tasks(server, ahead, "q", foreign, ("other",))
    fill_tasks(server, ahead, "q", OWN)
    stores = [open_store(server.url(place)) for place in (alone, mixed, ahead)]
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
    words = [word for word in sys.argv[1:] if word in SERVERS]
    numbers = [int(word.replace("_", "")) for word in sys.argv[1:] if word not in SERVERS]
    for chosen in words or SERVERS:
        main(chosen, numbers[0] if numbers else 1_000_000)
