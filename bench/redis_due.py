"""Redis: the longest time one script holds the server while a great many tasks fall due at once.

The server's own SLOWLOG says it. Two crowds, one after the other: plain tasks, and tasks of as many ordered partitions.
A worker that claims by a hundred, and the housekeeping beside it, go on until all have been moved.

    python -m bench.redis_due [redis|valkey] [TASKS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec

from bench.common import acknowledge, claim, figure, fill, message, seconds
from bench.place import DEFAULT, Place
from taskmq.durations import Moment
from taskmq.message import Message
from taskmq.transport.base import Maintain

BATCH = 200
SAMPLE = 5000
SLOWER = 2.0
"""How much slower than the sample the filling may be: until then nothing is due."""


def times(place: Place, tasks: int, make: Callable[[int], Message]) -> list[float]:
    """Milliseconds of each script, in order of length."""
    place.empty()
    store = place.store()
    far = Moment(round((time.time() + 1e6) * 1e6), relative=False)
    sample = seconds(lambda: fill(store, SAMPLE, lambda i: _at(make(i), far)))
    place.empty()
    due = time.time() + 2 + tasks / SAMPLE * sample * SLOWER
    moment = Moment(round(due * 1e6), relative=False)
    fill(store, tasks, lambda i: _at(make(i), moment))
    assert time.time() < due, "filling took too long: the tasks fell due meanwhile"
    time.sleep(max(0.0, due + 0.01 - time.time()))
    place.watch_slow()
    for _ in range(tasks // (3 * BATCH) + 1):  # the three verbs promote a batch each
        acknowledge(store, claim(store, 100))
        store.maintain(Maintain())
    return place.script_times()


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
        took = times(place, tasks, make)
        most, half = took[-1], took[len(took) // 2]
        figure(f"{kind}: longest script, {tasks:,} {name} due at once", f"{most:.2f} ms", most, "<= 6")
        print(f"{'':<58} median of those above 0.1 ms: {half:.2f} ms", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else DEFAULT, int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
