"""How many no-op tasks a second this machine publishes and runs: ``make bench``, or bench.py [--tasks N] [URL ...].

One process, one worker with the threads pool; the best of three rounds, because other programs only make it slower. The
figures compare stores and versions on one machine, and say nothing about another one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from time import perf_counter

from taskmq import App

ROUNDS = 3
SINGLE = 20  # one by one costs a commit each, so only a part of the tasks is published so


def main() -> None:
    """Measure each store and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=20_000, help="tasks a round")
    parser.add_argument("urls", metavar="URL", nargs="*", help="stores, each flushed first; default: memory and SQLite")
    options = parser.parse_args()
    print(f"{'tasks a second':<44}{'enqueue':>10}{'enqueue_many':>14}{'run':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for url in options.urls or ["memory://", f"sqlite:///{folder}/bench.db"]:
            rounds = [measure(url, options.tasks) for _ in range(ROUNDS)]
            single, many, ran = (max(figures) for figures in zip(*rounds, strict=True))
            print(f"{url:<44}{single:>10,.0f}{many:>14,.0f}{ran:>10,.0f}")


def measure(url: str, count: int) -> tuple[float, float, float]:
    """Tasks a second: published one by one, published in batches, and run."""
    with App(url) as app:
        app.store.flush()

        @app.task
        def nothing() -> None:
            pass

        def one_by_one() -> None:
            for _ in range(count // SINGLE):
                nothing.enqueue()

        def in_batches() -> None:
            app.enqueue_many(nothing.message() for _ in range(count))

        single = count // SINGLE / seconds(one_by_one)
        many = count / seconds(in_batches)
        with app.worker() as worker:
            ran = (count + count // SINGLE) / seconds(worker.drain)
        return single, many, ran


def seconds(work: Callable[[], object]) -> float:
    """How long the work takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


if __name__ == "__main__":
    main()
