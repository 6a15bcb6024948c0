"""Redis: the longest time one script holds the server while a great many tasks fall due at once.

The server's own SLOWLOG says it. Two crowds, one after the other: plain tasks, and tasks of as many ordered partitions.
A worker that claims by a hundred, and the housekeeping beside it, work through each.

    python -m bench.redis_due [redis|valkey] [TASKS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec

from bench.common import acknowledge, claim, figure, fill, message
from bench.place import Place
from taskmq.durations import Moment
from taskmq.message import Message
from taskmq.transport.base import Maintain

AHEAD = 40e-6
"""Seconds a task that filling may take."""


def longest(place: Place, tasks: int, make: Callable[[int], Message]) -> float:
    """Milliseconds of the longest script."""
    place.empty()
    store = place.store()
    due = time.time() + 2 + tasks * AHEAD
    moment = Moment(round(due * 1e6), relative=False)
    fill(store, tasks, lambda i: _at(make(i), moment))
    assert time.time() < due, "filling took too long: the tasks fell due meanwhile"
    time.sleep(max(0.0, due + 0.01 - time.time()))
    place.watch_slow()
    for _ in range(tasks // 1000 + 1):
        acknowledge(store, claim(store, 100))
        store.maintain(Maintain())
    return place.slowest()


def _at(plain: Message, moment: Moment) -> Message:
    return msgspec.structs.replace(plain, run_after=moment)


def main(kind: str, tasks: int) -> None:
    """Print both."""
    place = Place(kind)  # type: ignore[arg-type]
    crowds: dict[str, Callable[[int], Message]] = {
        "plain tasks": lambda _: message(),
        "ordered partitions": lambda i: message(partition=f"!{i}"),
    }
    for name, make in crowds.items():
        most = longest(place, tasks, make)
        figure(f"{kind}: longest script, {tasks:,} {name} due at once", f"{most:.2f} ms", most, "<= 6")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "redis", int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
