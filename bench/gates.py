"""Memory and SQLite: does a claim cost more behind a million tasks that it may not take?

Tasks of a handler that it cannot run, unpartitioned and in partitions of their own, and tasks of a limit whose key is
full. And the statistics of a queue of a million. SQLite at synchronous=NORMAL, where no disk wait hides the cost.

python -m bench.gates [TASKS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from bench.common import acknowledge, alternate, fill, folder, message, report, seconds
from taskmq.message import Message
from taskmq.queue import Limit
from taskmq.transport.base import Reserve, Store
from taskmq.transport.registry import open_store

LIMIT = Limit("full", 1)


def claims(store: Store, n: int, handlers: list[tuple[str, str]] | None, make: Callable[[int], Message]) -> float:
    """The time of one claim; what it took is settled and published anew, so that the line keeps its length."""
    params = Reserve(queues=["q"], limit=n, worker="w", handlers=handlers)
    held: list[object] = []
    took = seconds(lambda: held.extend(store.reserve(params).deliveries))
    assert len(held) == n, f"claimed {len(held)} of {n}"
    acknowledge(store, held)  # type: ignore[arg-type]
    fill(store, n, make)
    return took


def compared(name: str, few: Store, many: Store, handlers: list[tuple[str, str]] | None, part: bool = False) -> None:
    """One claim with and without what stands ahead."""

    def make(i: int) -> Message:
        return message(partition=f"p{i % 100}" if part else None)

    for store in (few, many):
        fill(store, 1000, make)
    for n, rounds in ((1, 300), (10, 150)):
        sides = [lambda s=store: claims(s, n, handlers, make) for store in (few, many)]
        alternate(sides, 20)
        base, large = alternate(sides, rounds)
        report(f"{name}, claim of {n}", f"{large * 1e3:.3f} ms", f"{base * 1e3:.3f} ms", large / base, "<= 1.5")


def main(tasks: int) -> None:
    """Print claim p50 with and without the crowd, for each store."""
    mine = [("h", "")]
    with folder() as place:
        for kind in ("memory", "sqlite"):

            def opened(name: str, kind: str = kind, place: Path = place) -> Store:
                url = "memory://" if kind == "memory" else f"sqlite:///{place / name}.db?synchronous=normal"
                return open_store(url)

            few, many = opened("f1"), opened("m1")
            fill(many, tasks, lambda i: message(handler="foreign"))
            fill(few, 1, lambda i: message(handler="foreign"))
            compared(f"{kind}: {tasks:,} foreign tasks ahead", few, many, mine)
            few, many = opened("f2"), opened("m2")
            fill(many, tasks, lambda i: message(handler="foreign", partition=f"!{i}"))
            fill(few, 1, lambda i: message(handler="foreign", partition="!0"))
            compared(f"{kind}: {tasks:,} foreign partitions ahead", few, many, mine, part=True)
            few, many = opened("f3"), opened("m3")
            for store, crowd in ((few, 2), (many, tasks)):
                fill(store, 1, lambda i: message(limit=LIMIT))
                store.reserve(Reserve(queues=["q"], limit=1, worker="holder", lease=3600 * 10**6))
                fill(store, crowd, lambda i: message(limit=LIMIT))
            compared(f"{kind}: {tasks:,} tasks of a full key ahead", few, many, None)
            few, many = opened("f4"), opened("m4")
            fill(few, 1000, lambda i: message(partition=f"p{i % 100}"))
            fill(many, tasks, lambda i: message(partition=f"p{i % 100}"))
            base, large = alternate([lambda: seconds(few.stats), lambda: seconds(many.stats)], 5)
            report(
                f"{kind}: statistics of {tasks:,} tasks / 1,000", f"{large:.4f} s", f"{base:.4f} s", large / base, "-"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
