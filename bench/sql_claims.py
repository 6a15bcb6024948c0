"""PostgreSQL and MariaDB: one claim's p50 among very many ready tasks, and with as many due in the future.

python -m bench.sql_claims [postgresql|postgresql-new|mariadb] [TASKS]
"""

from __future__ import annotations

from bench.common import acknowledge, alternate, claim, fill, message, report, seconds
from bench.sql_place import run, settle_down, url_of
from taskmq.message import Delivery
from taskmq.queue import QueueConfig
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store

FEW = 1000
YEAR = 365 * 24 * 3600


def one_claim(store: Store, n: int) -> float:
    """The time of one claim; what it took is settled, and published anew so that the line keeps its length."""
    held: list[Delivery] = []
    took = seconds(lambda: held.extend(claim(store, n)))
    acknowledge(store, held)
    fill(store, n, lambda i: message())
    return took


def measure(server: str, tasks: int) -> None:
    """Print both ratios for each order, for claims of one and of ten."""
    for order in ("strict", "aging"):
        stores = []
        for name, ready, future in (("few", FEW, 0), ("many", tasks, 0), ("late", FEW, tasks)):
            url = url_of(server, f"{name}-{order}")
            store = open_store(url)
            store.configure_queues({"q": QueueConfig(order=order)})
            fill(store, ready, lambda i: message())
            fill(store, future, lambda i: message(delay=YEAR + i))
            settle_down(url)
            stores.append(store)
        for n in (1, 10):
            sides = [lambda s=store, n=n: one_claim(s, n) for store in stores]
            alternate(sides, 30)
            base, large, late = alternate(sides, 300)
            for what, value in ((f"{tasks:,} ready / {FEW:,}", large), (f"{tasks:,} in the future / none", late)):
                shown = (f"{value * 1e3:.3f} ms", f"{base * 1e3:.3f} ms")
                report(f"{server}, {order}, claim of {n}: {what}", *shown, value / base, "<= 1.5")
        for store in stores:
            store.close()


if __name__ == "__main__":
    run(measure, 1_000_000)
