"""Three masters against one Redis of the same binary, in one run: rates over twelve queues, and the latency of a claim.

    python -m bench.redis_cluster [TASKS]

All servers are reached over TCP. Client processes, the one server and the three masters share this machine's cores, so
a cluster cannot be faster here; what is asked is what it costs, and that more client processes still help until the
cores are full.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import cache
from statistics import median

from bench.common import acknowledge, message, report
from bench.place import Place
from taskmq.message import Delivery
from taskmq.testing.redis_cluster import RedisCluster
from taskmq.transport.base import Publish, Reserve, Store
from taskmq.transport.registry import open_store

QUEUES = tuple(f"q{number}" for number in range(12))
BATCH = 10
ROUNDS = 3


_store = cache(open_store)
Times = tuple[float, float]


def publish(url: str, count: int) -> Times:
    """Begin and end of publishing so many tasks, a batch to each queue in turn."""
    store = _store(url)
    batches = [[message(QUEUES[i % 12]) for _ in range(BATCH)] for i in range(count // BATCH)]
    begun = time.monotonic()
    for batch in batches:
        store.publish(Publish(messages=batch))
    return begun, time.monotonic()


def work_off(url: str, count: int) -> Times:
    """Begin and end of claiming and settling so many tasks of all queues."""
    store = _store(url)
    begun = time.monotonic()
    for _ in range(count // BATCH):
        acknowledge(store, claim(store, BATCH))
    return begun, time.monotonic()


def claim(store: Store, n: int) -> list[Delivery]:
    """Claim from all queues."""
    return list(store.reserve(Reserve(queues=QUEUES, limit=n, worker="w", lease=60_000_000)).deliveries)


def together(what: Callable[[str, int], Times], url: str, count: int, processes: int) -> float:
    """Tasks a second by so many processes at once."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(what, [(url, 12 * BATCH)] * processes)  # connected and loaded
        begun, ended = zip(*pool.starmap(what, [(url, count // processes)] * processes), strict=True)
        return float(count / (max(ended) - min(begun)))


def latency(url: str, n: int) -> float:
    """Median microseconds of a claim of n over twelve queues."""
    store = open_store(url)
    publish(url, 12 * BATCH * 10 * n)
    times = []
    for _ in range(100):
        started = time.perf_counter()
        held = claim(store, n)
        times.append(time.perf_counter() - started)
        acknowledge(store, held)
    store.flush()
    return 1e6 * median(times)


def main() -> None:
    """Print both sides of every ratio."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
    one, three = Place("redis").tcp, RedisCluster("redis").url()
    for processes in (1, 2, 4):
        for name, what in (("publish by 10", publish), ("claim+settle by 10", work_off)):
            rates: dict[str, list[float]] = {"one": [], "three": []}
            for _ in range(ROUNDS):
                for side, url in (("one", one), ("three", three)):
                    if what is work_off:
                        publish(url, count + processes * 12 * BATCH)
                    rates[side].append(together(what, url, count, processes))
                    store = open_store(url)
                    store.flush()
                    store.close()
            single, cluster = median(rates["one"]), median(rates["three"])
            report(
                f"{name}, {processes} client processes",
                f"{cluster:,.0f}/s",
                f"{single:,.0f}/s",
                cluster / single,
                ">= 0.6" if processes == 1 else "-",
            )
    for n in (1, 10):
        single, cluster = latency(one, n), latency(three, n)
        report(f"claim of {n} over 12 queues", f"{cluster:.0f} us", f"{single:.0f} us", cluster / single, "<= 2.5")


if __name__ == "__main__":
    main()
