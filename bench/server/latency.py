"""From the submit to the handler's start, on a worker that has nothing else to do."""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import Any

from bench.common import figure
from bench.server.served import Served
from taskmq.client import Worker


def submit_to_start(at: Served, rounds: int) -> None:
    """p50 and p99, at random moments of the claim's second."""
    with at.client() as api:
        started: dict[str, float] = {}
        heard = threading.Event()
        worker = Worker(api, ["initial"])

        @worker.handler("now")
        def now(execution: Any) -> None:
            started[execution.task.task_id] = time.perf_counter()
            heard.set()

        worker.start()
        delays = []
        for i in range(rounds):
            heard.clear()
            time.sleep(random.uniform(1.0, 1.6))  # its budget of four claims a second is not used up
            began = time.perf_counter()
            task = api.submit_task(f"latency-{i}", queue="initial", handler="now")
            heard.wait(5)
            delays.append((started[task.task_id] - began) * 1000)
        worker.drain(5)
        worker.stop()
    cuts = statistics.quantiles(delays, n=100)
    for name, value, reach in (("p50", cuts[49], "<= 10"), ("p99", cuts[98], "<= 50")):
        figure(f"{at.kind}, submit to start on an idle worker, {name}", f"{value:.1f} ms", value, reach)
