"""Redis: what a waiting task with 100 bytes of arguments costs the server, plain and as a partition of its own.

python -m bench.redis_memory [redis|valkey] [TASKS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.common import figure, fill, message
from bench.place import DEFAULT, Place
from taskmq.message import Message


def size(place: Place, count: int, make: Callable[[int], Message]) -> float:
    """Bytes a task."""
    place.empty()
    store = place.store()
    fill(store, 100, make, 100)  # the library of scripts, the queue's settings: once, not for each task
    before = place.number("used_memory")
    fill(store, count, lambda i: make(i + 100), 100)
    return (place.number("used_memory") - before) / count


def main(kind: str, tasks: int) -> None:
    """Print both."""
    place = Place(kind)  # type: ignore[arg-type]
    plain = size(place, tasks, lambda _: message())
    figure(f"{kind}: memory a waiting task", f"{plain:.0f} B", plain, "<= 450")
    alone = size(place, tasks, lambda i: message(partition=f"!{i}"))
    figure(f"{kind}: memory a one-task ordered partition", f"{alone:.0f} B", alone, "<= 600")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else DEFAULT, int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
