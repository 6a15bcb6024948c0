"""PostgreSQL and MariaDB: fifty claimers under ``max_running=8``: never above eight, and starts a second.

Two processes of 25 claimers, each with a store of its own; a claimer that finds the queue full waits as a worker does.
Each claims what it can get up to its batch, and settles it with the next claim, as a worker's exchange does. How many
run at a time is counted twice: by the claimers, in memory that they share, from after a claim until before its settle;
and over and over by a look at the tasks.

    python -m bench.sql_limits [postgresql|postgresql-new|mariadb] [TASKS]
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.common import figure, fill, message
from bench.sql_place import connect, run, settle_down, url_of
from taskmq.outcome import Ack
from taskmq.queue import QueueConfig
from taskmq.transport.base import Reserve, Settle, Settlement, Store, Wait
from taskmq.transport.registry import open_store

CAP, CLAIMERS, PROCESSES = 8, 50, 2
BATCHES = (1, CAP)
RUNNING = "SELECT count(*) FROM taskmq_tasks WHERE state=2"


class Hands:
    """What all claimers hold, and the most that they ever held."""

    def __init__(self) -> None:
        self.held = multiprocessing.Value("i", 0)
        self.most = multiprocessing.Value("i", 0)
        self.done = multiprocessing.Value("i", 0)

    def take(self, count: int) -> None:
        """So many more are in hands."""
        with self.held.get_lock():
            self.held.value += count
            self.most.value = max(self.most.value, self.held.value)

    def give(self, count: int) -> None:
        """So many are about to be settled."""
        with self.held.get_lock():
            self.held.value -= count
            self.done.value += count


def claimer(store: Store, hands: Hands, batch: int) -> None:
    """Until the queue is empty."""
    wanted = Reserve(queues=["q"], limit=batch, worker="w")
    held = store.reserve(wanted).deliveries
    while True:
        if held:
            hands.take(len(held))
            settle = Settle(items=[Settlement(delivery, Ack()) for delivery in held])
            hands.give(len(held))
            held = store.settle_and_reserve(settle, wanted)[1].deliveries
        elif store.wait(Wait(queues=["q"], timeout=1.0)) or store.stats(["q"])[0].ready:
            held = store.reserve(wanted).deliveries
        else:
            return


def process(url: str, hands: Hands, batch: int, go: Any) -> None:
    """Its share of the claimers."""
    stores = [open_store(url) for _ in range(CLAIMERS // PROCESSES)]
    threads = [threading.Thread(target=claimer, args=(store, hands, batch)) for store in stores]
    go.wait()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def counter(url: str) -> Callable[[str], int]:
    """Asks the database for a number."""
    connection = connect(url)
    cursor = connection.cursor()

    def ask(statement: str) -> int:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])

    return ask


def measure(server: str, tasks: int) -> None:
    """Print the most that were in hands at a time, and the rate, for claims of one and of eight."""
    for batch in BATCHES:
        url = url_of(server, f"limits-{batch}")
        store = open_store(url)
        store.configure_queues({"q": QueueConfig(max_running=CAP)}, overwrite=True)
        fill(store, tasks, lambda i: message())
        settle_down(url)
        look = counter(url)
        hands, go = Hands(), multiprocessing.Event()
        claimers = [multiprocessing.Process(target=process, args=(url, hands, batch, go)) for _ in range(PROCESSES)]
        for one in claimers:
            one.start()
        time.sleep(1.0)  # they have connected
        began = time.monotonic()
        go.set()
        seen = 0
        while hands.done.value < tasks * 0.95:
            seen = max(seen, look(RUNNING))
            time.sleep(0.002)
        rate = hands.done.value / (time.monotonic() - began)
        for one in claimers:
            one.join()
        name = f"{server}, max_running={CAP}, {CLAIMERS} claimers, by {batch}"
        most = max(seen, hands.most.value)
        figure(f"{name}: most at a time", f"{most}", most, f"<= {CAP}")
        figure(f"{name}: starts", f"{rate:,.0f}/s", rate, ">= 2000" if server != "mariadb" else "-")
        store.close()


if __name__ == "__main__":
    run(measure, 20_000)
