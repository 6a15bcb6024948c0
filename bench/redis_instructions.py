"""Redis: thousands of instructions that the server needs for a task, whatever else the machine does.

Counted by ``valgrind --tool=callgrind`` (Debian's package valgrind) over the whole server: each figure is the
difference between two runs of which one makes more of the same calls, divided by the tasks that these were about. Few
calls (by 1) are uncertain by a tenth: how much of Lua's collector falls into them is chance.

    python -m bench.redis_instructions [plain] [ordered] [parallel] [queues]
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.common import acknowledge, message
from taskmq.message import Delivery, Message
from taskmq.testing.servers import binary
from taskmq.transport.base import Publish, Reserve, Store
from taskmq.transport.registry import open_store

FEW, MANY = 10, 50
"""Calls of the two runs."""
QUEUES = [f"q{i}" for i in range(12)]
KINDS: dict[str, Callable[[int], Message]] = {
    "plain": lambda i: message(QUEUES[0]),
    "ordered": lambda i: message(QUEUES[0], partition=f"!{i}"),
    "parallel": lambda i: message(QUEUES[0], partition=f"{i}"),
    "queues": lambda i: message(QUEUES[i % len(QUEUES)]),
}


def instructions(work: Callable[[Store], None]) -> int:
    """What a server of its own needs from its start to its end, with this work in between."""
    program = binary("redis") or binary("valkey")
    with tempfile.TemporaryDirectory() as folder:
        socket, out = f"{folder}/socket", Path(folder) / "counted"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(program)]
        command += ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder, "--hz", "1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            while not Path(socket).exists() and server.poll() is None:
                time.sleep(0.05)
            try:
                store = open_store(f"unix://{socket}?db=0")
                work(store)
                store.close()
            finally:
                server.terminate()
        found = re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.MULTILINE)
        assert found, "valgrind counted nothing"
        return int(found[1])


def verbs(kind: str, batch: int) -> dict[str, float]:
    """Instructions a task of each verb."""
    make = KINDS[kind]

    def claim(store: Store, n: int) -> list[list[Delivery]]:
        queues = QUEUES if kind == "queues" else QUEUES[:1]
        return [list(store.reserve(Reserve(queues=queues, limit=batch, worker="w")).deliveries) for _ in range(n)]

    def calls(published: int, claimed: int, settled: int) -> Callable[[Store], None]:
        def work(store: Store) -> None:
            for start in range(0, (MANY + 2) * batch + 500, 500):
                store.publish(Publish(messages=[make(i) for i in range(start, start + 500)]))
            for at in range(published):
                store.publish(Publish(messages=[make(at * batch + i) for i in range(batch)]))
            acknowledge(store, claim(store, 1)[0])
            for held in claim(store, claimed)[:settled]:
                acknowledge(store, held)

        return work

    base = instructions(calls(FEW, MANY, FEW))
    more = {"publish": (MANY, MANY, FEW), "settle": (FEW, MANY, MANY)}
    found = {verb: instructions(calls(*counts)) - base for verb, counts in more.items()}
    found["reserve"] = base - instructions(calls(FEW, FEW, FEW))
    return {verb: found[verb] / ((MANY - FEW) * batch) / 1000 for verb in ("publish", "reserve", "settle")}


def main(kinds: list[str]) -> None:
    """Print the verbs of each kind by 1, 10 and 100."""
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: apt-get install valgrind")
    for kind in kinds:
        for batch in (1, 10, 100):
            found = verbs(kind, batch)
            print(f"{kind} by {batch:<4}", *(f"{verb} {count:8.1f}" for verb, count in found.items()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(KINDS))
