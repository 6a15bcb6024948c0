"""The Redis store alone, on a server of its own: rates, memory, and what does not depend on the size of things.

    python -m bench.redis_store [redis|valkey] [on|off] [TASKS]

Client and server share this machine, so compare figures of one run only.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.common import acknowledge, claim, message, report, seconds
from taskmq.testing.servers import RedisServer
from taskmq.transport.base import Publish, Reserve, Store, Wait
from taskmq.transport.redis.connection import Server, Settings
from taskmq.transport.registry import open_store

BATCHES = (1, 10, 100)


class Place:
    """A server, an empty store on it, and a look at its memory."""

    def __init__(self, kind: Any, lua: str) -> None:
        self.server = RedisServer(kind)
        self.store: Store = open_store(self.server.url(lua=lua))
        self._raw = Server(Settings(self.server.url()))

    def memory(self) -> int:
        return int(self._raw.info()["used_memory"])

    def empty(self) -> None:
        self._raw.command("FLUSHALL")


def publish(store: Store, count: int, batch: int, partition: Callable[[int], str | None] = lambda i: None) -> float:
    """Seconds for publishing so many tasks."""
    messages = [message(partition=partition(i)) for i in range(count)]
    parts = [messages[i : i + batch] for i in range(0, count, batch)]
    return seconds(lambda: [store.publish(Publish(messages=part)) for part in parts])


def work_off(store: Store, count: int, batch: int) -> float:
    """Seconds for claiming and settling so many tasks."""
    return seconds(lambda: [acknowledge(store, claim(store, batch)) for _ in range(0, count, batch)])


def rates(place: Place, tasks: int) -> None:
    """Publish and reserve+settle by batch size, and the memory of a waiting task."""
    for batch in BATCHES:
        count = tasks if batch > 1 else tasks // 5
        before = place.memory()
        took = publish(place.store, count, batch)
        size = (place.memory() - before) / count
        print(f"publish by {batch:<3}         {count / took:9,.0f}/s   {size:5.0f} B a task (reach <= 450 by 100)")
        print(f"reserve+settle by {batch:<3}  {count / work_off(place.store, count, batch):9,.0f}/s")
    place.empty()
    before = place.memory()
    publish(place.store, tasks, 100, lambda i: f"!{i}")
    print(f"one-task partitions     {(place.memory() - before) / tasks:5.0f} B each (reach <= 600)")
    place.empty()


def partitions(place: Place, tasks: int) -> None:
    """Reserve+settle of ordered partitions: few against many."""
    figures = {}
    for many in (10, tasks):
        publish(place.store, tasks, 1000, lambda i, many=many: f"!{i % many}")
        count = min(tasks, 5000)
        figures[many] = count / work_off(place.store, count, 10)
        place.empty()
    ratio = figures[tasks] / figures[10]
    report(f"{tasks} ordered partitions / 10", f"{figures[tasks]:,.0f}/s", f"{figures[10]:,.0f}/s", ratio, ">= 0.7")


def queues(place: Place) -> None:
    """A reserve over a thousand queues of which ten have work, against one over those ten."""
    names = [f"q{i}" for i in range(1000)]
    few = names[::100]
    place.store.publish(Publish(messages=[message(queue=name) for name in few for _ in range(90)]))
    took: dict[int, list[float]] = {len(names): [], len(few): []}
    for _ in range(30):
        for chosen in (names, few):
            begun = time.perf_counter()
            got = place.store.reserve(Reserve(queues=chosen, limit=10, worker="w")).deliveries
            took[len(chosen)].append(time.perf_counter() - begun)
            acknowledge(place.store, got)
    many, ten = sorted(took[1000])[10] * 1e3, sorted(took[10])[10] * 1e3
    report("reserve over 1,000 queues / over the 10 with work", f"{many:.2f} ms", f"{ten:.2f} ms", many / ten, "<= 3")
    place.empty()


def waking(place: Place, rounds: int = 300) -> None:
    """From a publish to the return of a wait that it ends."""
    woken: list[float] = []
    begun = 0.0

    def waiter() -> None:
        while len(woken) < rounds:
            if place.store.wait(Wait(queues=["q"], timeout=5)):
                woken.append(time.perf_counter() - begun)
                acknowledge(place.store, claim(place.store, 1))
                ready.release()

    ready = threading.Semaphore(0)
    thread = threading.Thread(target=waiter)
    thread.start()
    for _ in range(rounds):
        time.sleep(0.003)
        begun = time.perf_counter()
        place.store.publish(Publish(messages=[message()]))
        ready.acquire()
    thread.join()
    woken.sort()
    half, most = woken[rounds // 2] * 1e3, woken[rounds * 99 // 100] * 1e3
    print(f"publish → wait returns  p50 {half:.2f} ms (reach <= 1)   p99 {most:.2f} ms (reach <= 5)")


def main(kind: str, lua: str, tasks: int) -> None:
    """Print all figures."""
    place = Place(kind, lua)
    rates(place, tasks)
    partitions(place, tasks)
    queues(place)
    waking(place)
    place.store.close()


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "redis",
        sys.argv[2] if len(sys.argv) > 2 else "on",
        int(sys.argv[3]) if len(sys.argv) > 3 else 20_000,
    )
