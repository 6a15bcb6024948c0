"""A claim's time with many tasks in the future and a long line beside a short one and none in the future."""

from __future__ import annotations

import time

from bench.common import BODY, alternate, report
from bench.server.dispatch import publish
from bench.server.served import Served
from taskmq.durations import Moment
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.transport.base import Publish, Reserve
from taskmq.transport.serving import HandBack, ServingStore

FEW = 1000


def claims(at: Served, future: int, ready: int) -> None:
    """p50 of claims of 1 and of 10 as the server makes them; what they take goes back at once."""
    served = at.store()
    publish(served, "short", FEW)
    publish(served, "long", ready)
    later = Moment(round(86_400e6 * 30), relative=True)
    for start in range(0, future, 1000):
        messages = [
            Message(id=new_id(), queue="long", handler="bench", version="v1", body=BODY, run_after=later)
            for _ in range(min(1000, future - start))
        ]
        served.publish(Publish(messages=messages))
    for n in (1, 10):
        sides = [lambda q=queue, n=n: _claim(served, q, n) for queue in ("short", "long")]
        alternate(sides, 20)
        short, long = alternate(sides, 200)
        what = f"{at.kind}, claim of {n}, p50: {future:,} in the future, {ready:,} ready / {FEW:,} ready"
        report(what, f"{long * 1e3:.2f} ms", f"{short * 1e3:.2f} ms", long / short, "<= 1.5")


def _claim(store: ServingStore, queue: str, n: int) -> float:
    wish = Reserve(
        queues=[queue],
        limit=n,
        worker="w",
        lease=10_000_000,
        handlers=(("bench", "v1"),),
        keys=False,
        reservation=True,
    )
    began = time.perf_counter()
    found = store.reserve(wish).deliveries
    took = time.perf_counter() - began
    assert len(found) == n
    store.steps("w", [HandBack(delivery.id, delivery.epoch) for delivery in found])
    return took
