"""Tasks through claim, start and finish over WebSocket beside the library's reserve and settle on the same database.

A connection may start four claims a second, so a worker that claims one by one is given four tasks a second however
fast the server is; a node takes 128 connections, so 512 claims a second are the most that the protocol allows. The
workers are as many as the rate needs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

from bench.common import BODY, acknowledge, alternate, report, work_off
from bench.server.served import Served
from bench.server.sockets import workers
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.transport.base import Publish, Reserve
from taskmq.transport.serving import ServingStore

CONNECTIONS = 120
ROUNDS = 3
REACH = {1: ">= 0.7", 10: ">= 0.5"}


def rates(at: Served, seconds: float) -> None:
    """Both sides at batch 1 and 10, in turns; the library with one thread, and with four."""
    with at.client() as api:
        queue_id = next(iter(api.list_queues(name="initial"))).queue_id
    served = at.stores.of(at.environment)
    for n, most in ((1, 600), (10, 6000)):

        def over(n: int = n, most: int = most) -> float:
            publish(served, queue_id, int(most * (seconds + 2)))
            return asyncio.run(_over_sockets(at, n, seconds))

        def alone(threads: int, n: int = n, most: int = most) -> float:
            count = int(most * seconds)
            publish(at.store(), "q", count)
            return _library(at, n, count, threads)

        ours, one, four = alternate([over, partial(alone, 1), partial(alone, 4)], ROUNDS)
        what = f"{at.kind}, dispatch in batches of {n}, {CONNECTIONS} workers / library"
        report(f"{what}, 1 thread", f"{ours:,.0f}/s", f"{one:,.0f}/s", ours / one, REACH[n])
        report(f"{what}, 4 threads", f"{ours:,.0f}/s", f"{four:,.0f}/s", ours / four, "-")


def publish(store: ServingStore, queue: str, count: int) -> None:
    """So many tasks of the handler ``bench``."""
    for start in range(0, count, 1000):
        more = min(1000, count - start)
        store.publish(Publish(messages=[_message(queue) for _ in range(more)]))


def _message(queue: str) -> Message:
    return Message(id=new_id(), queue=queue, handler="bench", version="v1", body=BODY)


async def _over_sockets(at: Served, n: int, seconds: float) -> float:
    """Tasks a second of all workers together."""
    idle = await workers(at, CONNECTIONS, n)
    begin = time.perf_counter() + 1.0  # a first second warms up
    done = 0

    async def work(index: int) -> None:
        nonlocal done
        while (now := time.perf_counter()) < begin + seconds:
            count = await idle[index].round(n)
            done += count if now >= begin else 0

    await asyncio.gather(*(work(i) for i in range(CONNECTIONS)))
    rate = done / (time.perf_counter() - begin)
    await asyncio.gather(*(worker.close() for worker in idle))
    return rate


def _library(at: Served, n: int, count: int, threads: int) -> float:
    """Tasks a second of the library alone."""
    if threads == 1:
        return work_off(at.store(), count, n)
    each = count // threads

    def work(name: str) -> None:
        for _ in range(0, each, n):
            wish = Reserve(queues=["q"], limit=n, worker=name)
            acknowledge(at.store(), at.store().reserve(wish).deliveries)

    running = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(threads)]
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return each * threads / (time.perf_counter() - began)
