"""Redis: two and eight processes that claim by five and settle, and eight without Lua.

With the path of a checkout of Rinsvent/smart-redis-queue also against that library's scripts, called by as many
processes: a get of five, then an acknowledgement each, as its consumer does.

    python -m bench.redis_processes [redis|valkey] [TASKS] [CHECKOUT]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic

from bench.common import acknowledge, alternate, claim, figure, fill, message, report
from bench.place import DEFAULT, Place
from bench.source_library import SourceLibrary
from taskmq.transport.registry import open_store

ROUNDS = 3


def work(url: str, batch: int, checkout: str | None) -> None:
    """One of the processes: get ready, wait for the word, work off all there is, say how much and from when to when."""
    store = open_store(url)
    theirs = SourceLibrary(url, Path(checkout), str(monotonic())) if checkout else None
    claim(store, 1) if theirs is None else theirs.get(1)  # nothing is there yet: connections and scripts are
    print("ready", flush=True)
    sys.stdin.readline()
    begun = ended = monotonic()
    done = 0
    if theirs is not None:
        done, ended = theirs.work_off(batch), monotonic()
    else:
        while held := claim(store, batch):
            acknowledge(store, held)
            done, ended = done + len(held), monotonic()
    print(done, begun, ended, flush=True)


def rate(place: Place, tasks: int, processes: int, batch: int = 5, checkout: str | None = None) -> float:
    """Tasks a second of so many processes together, from the first one's start to the last one's end."""
    place.empty()
    words = [sys.executable, "-m", "bench.redis_processes", "work", place.url(), str(batch)]
    workers = [
        subprocess.Popen(
            [*words, *([checkout] if checkout else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    if checkout:
        SourceLibrary(place.url(), Path(checkout)).fill([""] * tasks)
    else:
        fill(place.store(), tasks, lambda _: message())
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    rows = [[float(word) for word in worker.communicate()[0].split()] for worker in workers]
    assert sum(done for done, _, _ in rows) == tasks, "nothing twice, nothing lost"
    return tasks / (max(ended for _, _, ended in rows) - min(begun for _, begun, _ in rows))


def main(kind: str, tasks: int, checkout: str | None) -> None:
    """Print the figures."""
    place, without = Place(kind), Place(kind, "off")  # type: ignore[arg-type]
    two, eight = alternate([lambda: rate(place, tasks, 2), lambda: rate(place, tasks, 8)], ROUNDS)
    report(f"{kind}: 8 processes / 2, by 5", f"{eight:,.0f}/s", f"{two:,.0f}/s", eight / two, ">= 0.9")
    if checkout:
        for count in (2, 8):
            ours, theirs = alternate(
                [lambda: rate(place, tasks, count), lambda: rate(place, tasks, count, 5, checkout)], ROUNDS
            )
            name = f"{kind}: {count} processes / the source library's scripts"
            report(name, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, ">= 1.5")
    alone, off = alternate([lambda: rate(without, tasks, 1, 10), lambda: rate(without, tasks, 8, 10)], ROUNDS)
    figure(f"{kind}: 1 process, lua=off, by 10", f"{alone:,.0f}/s", alone, "-")
    figure(f"{kind}: 8 processes, lua=off, by 10", f"{off:,.0f}/s", off, ">= 10,000")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
    else:
        main(
            sys.argv[1] if len(sys.argv) > 1 else DEFAULT,
            int(sys.argv[2]) if len(sys.argv) > 2 else 40_000,
            sys.argv[3] if len(sys.argv) > 3 else None,
        )
