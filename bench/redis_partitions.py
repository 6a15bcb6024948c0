"""Redis: claim and settle with a million active ordered partitions against ten, tasks and server the same.

With the path of a checkout of Rinsvent/smart-redis-queue also against that library's own scripts, ten thousand ordered
partitions on both sides, by five at a time (its default).

    python -m bench.redis_partitions [redis|valkey] [PARTITIONS] [CHECKOUT [PARTITIONS]]
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.common import alternate, fill, message, report, seconds, work_off
from bench.place import DEFAULT, Place
from bench.source_library import SourceLibrary

ROUNDS = 5
TASKS = 5000
"""Worked off in a round."""


def few_and_many(kind: str, many: int) -> None:
    """Print both for batches of ten and of a hundred."""
    place = Place(kind)  # type: ignore[arg-type]
    crowd, few = place.store("many:"), place.store("few:")
    tasks = min(TASKS, many // 20)
    fill(crowd, many, lambda i: message(partition=f"!{i}"))
    fill(few, 2 * ROUNDS * tasks, lambda i: message(partition=f"!{i % 10}"))
    for batch in (10, 100):
        rates = alternate([lambda: work_off(crowd, tasks, batch), lambda: work_off(few, tasks, batch)], ROUNDS)
        name = f"{kind}: {many:,} ordered partitions / 10, by {batch}"
        report(name, f"{rates[0]:,.0f}/s", f"{rates[1]:,.0f}/s", rates[0] / rates[1], ">= 0.7")


def against_source(kind: str, checkout: Path, many: int, prefetch: int = 5) -> None:
    """Print both sides with the same partitions, each with one task."""
    place = Place(kind)  # type: ignore[arg-type]
    codes = [f"!{i}" for i in range(many)]
    ours, theirs = place.store(), SourceLibrary(place.url(), checkout)
    fill(ours, many, lambda i: message(partition=codes[i]))
    theirs.fill(codes)
    slow = min(200, many // 10)
    rates = alternate(
        [
            lambda: work_off(ours, many // 10, prefetch),
            lambda: slow / seconds(lambda: theirs.work_off(prefetch, slow)),
        ],
        ROUNDS,
    )
    name = f"{kind}: {many:,} ordered partitions / the source library, by {prefetch}"
    report(name, f"{rates[0]:,.0f}/s", f"{rates[1]:,.0f}/s", rates[0] / rates[1], ">= 50")


def main(arguments: list[str]) -> None:
    """Print the figures."""
    kind = arguments[0] if arguments else DEFAULT
    few_and_many(kind, int(arguments[1]) if len(arguments) > 1 else 1_000_000)
    if len(arguments) > 2:
        against_source(kind, Path(arguments[2]), int(arguments[3]) if len(arguments) > 3 else 10_000)


if __name__ == "__main__":
    main(sys.argv[1:])
