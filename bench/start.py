"""Where a lone task's time goes between ``enqueue`` and its handler, within one process.

Milliseconds since before ``enqueue``, medians: published (``enqueue`` has returned), heard (the waiter woke), the
claim's beginning and its end, and the handler's first line; tasks come 50 ms apart.

python -m bench.start [TASKS]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

from bench.common import folder
from taskmq import App

STAGES = ("published", "heard", "claim begins", "claimed", "started")


def run(url: str, tasks: int) -> list[float]:
    """The median of each stage, in milliseconds."""
    seen: dict[str, float] = {}
    rows: list[list[float]] = []
    with App(url) as app:

        @app.task(name="start", queue="q")
        def start() -> None:
            seen["started"] = perf_counter()

        store: Any = app.store

        def timed(verb: Callable[..., Any]) -> Callable[..., Any]:
            def call(*params: Any) -> Any:
                began = perf_counter()
                answer = verb(*params)
                reserved = answer[1] if isinstance(answer, tuple) else answer
                if reserved.deliveries:
                    seen["claim begins"], seen["claimed"] = began, perf_counter()
                return answer

            return call

        def waited(params: Any, wait: Callable[..., Any] = store.wait) -> Any:
            answer = wait(params)
            seen["heard"] = perf_counter()
            return answer

        store.wait = waited
        store.reserve, store.settle_and_reserve = timed(store.reserve), timed(store.settle_and_reserve)
        with app.worker(concurrency=8) as worker:
            for _ in range(tasks):
                time.sleep(0.03)
                began = perf_counter()
                start.enqueue()
                seen["published"] = perf_counter()
                time.sleep(0.02)
                worker.drain(10)
                rows.append([(seen[stage] - began) * 1e3 for stage in STAGES])
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def main(tasks: int) -> None:
    """Print the stages for each store."""
    with folder() as place:
        for name, url in {
            "memory": "memory://",
            "NORMAL": f"sqlite:///{place}/normal.db?synchronous=normal",
            "FULL": f"sqlite:///{place}/full.db",
        }.items():
            times = ", ".join(f"{stage} {at:.2f}" for stage, at in zip(STAGES, run(url, tasks), strict=True))
            print(f"{name:<7} {times} ms", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
