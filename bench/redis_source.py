"""Redis: the table that the source library's article shows, with its scripts and with ours side by side.

Same server, same kind of connection, same 100 bytes of arguments, no partition. Its get is followed by an
acknowledgement for each task, as its consumer does; ours by one settle.

    python -m bench.redis_source CHECKOUT [redis|valkey] [TASKS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from bench import redis_processes
from bench.common import alternate, fill, message, report, seconds, work_off
from bench.place import DEFAULT, Place
from bench.source_library import SourceLibrary
from taskmq.transport.base import Store

ROUNDS = 3


class Sides:
    """Both libraries on one server."""

    def __init__(self, place: Place, checkout: Path) -> None:
        self.place = place
        self.ours: Store = place.store()
        self.theirs = SourceLibrary(place.url(), checkout)

    def publish(self, tasks: int, batch: int) -> list[Callable[[], float]]:
        """Rates of publishing."""

        def ours() -> float:
            self.place.empty()
            messages = [message() for _ in range(tasks)]
            return tasks / seconds(lambda: fill(self.ours, tasks, messages.__getitem__, batch))

        def theirs() -> float:
            self.place.empty()
            return tasks / seconds(lambda: self.theirs.fill([""] * tasks, batch))

        return [ours, theirs]

    def get(self, tasks: int, prefetch: int) -> list[Callable[[], float]]:
        """Rates of working off."""

        def ours() -> float:
            self.place.empty()
            fill(self.ours, tasks, lambda _: message())
            return work_off(self.ours, tasks, prefetch)

        def theirs() -> float:
            self.place.empty()
            self.theirs.fill([""] * tasks)
            return tasks / seconds(lambda: self.theirs.work_off(prefetch, tasks))

        return [ours, theirs]


def main(checkout: Path, kind: str, tasks: int) -> None:
    """Print a line for each of the article's rows."""
    place = Place(kind)  # type: ignore[arg-type]
    sides = Sides(place, checkout)
    rows = {f"publish by {batch}": sides.publish(tasks if batch > 1 else tasks // 4, batch) for batch in (1, 10, 100)}
    rows |= {f"get and acknowledge, prefetch {n}": sides.get(tasks // (1 if n > 1 else 2), n) for n in (1, 5)}
    for count in (2, 8):
        rows[f"{count} workers, prefetch 5"] = [
            lambda count=count: redis_processes.rate(place, tasks, count),  # type: ignore[misc]
            lambda count=count: redis_processes.rate(place, tasks, count, 5, str(checkout)),  # type: ignore[misc]
        ]
    for name, pair in rows.items():
        ours, theirs = alternate(pair, ROUNDS)
        report(name, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, ">= 1.5" if "workers" in name else "-")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give the path of a checkout of Rinsvent/smart-redis-queue")
    main(
        Path(sys.argv[1]),
        sys.argv[2] if len(sys.argv) > 2 else DEFAULT,
        int(sys.argv[3]) if len(sys.argv) > 3 else 20_000,
    )
