"""SQLite: does a claim cost more with a million tasks ready, or with a million in the future?

At synchronous=NORMAL, where no disk wait hides what the size of the table costs.

python -m bench.claim_scale [TASKS]
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.common import acknowledge, alternate, claim, fill, folder, message, report, seconds
from taskmq.queue import QueueConfig
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store


def opened(path: Path, order: str, ready: int, future: int) -> Store:
    """A store with so many tasks in line and so many due in ten years."""
    store = open_store(f"sqlite:///{path}?synchronous=normal")
    store.configure_queues({"q": QueueConfig(order=order)})  # type: ignore[arg-type]
    fill(store, ready, lambda i: message())
    fill(store, future, lambda i: message(delay=3600 * 24 * 365 + i))
    return store


def claims(store: Store, n: int) -> float:
    """The time of one claim; what it took is settled, and published anew so that the line keeps its length."""
    held: list[object] = []
    took = seconds(lambda: held.extend(claim(store, n)))
    acknowledge(store, held)  # type: ignore[arg-type]
    fill(store, n, lambda i: message())
    return took


def main(tasks: int) -> None:
    """Print claim p50 at 1,000 ready, at ``tasks`` ready, and with ``tasks`` more in the future."""
    with folder() as place:
        for order in ("strict", "aging"):
            few = opened(place / f"few-{order}.db", order, 1000, 0)
            many = opened(place / f"many-{order}.db", order, tasks, 0)
            late = opened(place / f"late-{order}.db", order, 1000, tasks)
            for n, rounds in ((1, 400), (10, 200)):
                sides = [lambda s=store: claims(s, n) for store in (few, many, late)]
                alternate(sides, 20)
                base, large, future = alternate(sides, rounds)
                name = f"{order}, claim of {n}, p50:"
                report(
                    f"{name} {tasks:,} ready / 1,000",
                    f"{large * 1e3:.3f} ms",
                    f"{base * 1e3:.3f} ms",
                    large / base,
                    "<= 1.5",
                )
                report(
                    f"{name} {tasks:,} in the future / none",
                    f"{future * 1e3:.3f} ms",
                    f"{base * 1e3:.3f} ms",
                    future / base,
                    "<= 1.5",
                )
            for store in (few, many, late):
                store.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
