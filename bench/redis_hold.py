"""How long one script holds a Redis server when very much falls due at once.

    python -m bench.redis_hold [redis|valkey] [TASKS]

A million delayed tasks due in one microsecond, unpartitioned and in ordered partitions; tasks too late to start;
100,000 leases that end in one microsecond; 200 slots of a limit that are freed at once before 100,000 parked tasks.
Claims and housekeeping work on it. By the server's slow log, where a call that the machine interrupted is longer than
it is; so there is the processor time of the longest, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from bench.common import fill, message
from taskmq.clock import SECOND
from taskmq.durations import Moment
from taskmq.message import Message
from taskmq.queue import Limit
from taskmq.testing.clock import FakeClock
from taskmq.testing.servers import RedisServer
from taskmq.transport.base import Maintain, Reserve, Store
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.settings import Settings
from taskmq.transport.registry import open_store

LATER = 1000
"""Seconds."""
ROUNDS = 200
CLAIM = 20
REACH = 6
"""Milliseconds."""


class Watched:
    """A store on a server of its own, and what its calls cost there."""

    def __init__(self, kind: Any) -> None:
        self.server = RedisServer(kind)
        self.clock = FakeClock()
        self.store: Store = open_store(self.server.url(), clock=self.clock)
        self._raw = Server(Settings(self.server.url()))
        self._raw.command("CONFIG", "SET", "slowlog-max-len", 100_000)
        self._raw.command("CONFIG", "SET", "slowlog-log-slower-than", 0)

    def _cpu(self) -> float:
        text = self._raw.command("INFO", "cpu").decode()
        values = dict(line.split(":") for line in text.split() if ":" in line)
        return float(values["used_cpu_user_main_thread"]) + float(values["used_cpu_sys_main_thread"])

    def work(self, name: str, claim: int = CLAIM) -> None:
        """Claims with housekeeping between them, as a fleet does them; prints the longest calls."""
        store = self.store
        verbs: dict[str, Callable[[], object]] = {
            "reserve": lambda: store.reserve(Reserve(queues=["q"], limit=claim, worker="w", lease=LATER * SECOND)),
            "tidy": lambda: store.maintain(Maintain()),
        }
        cpu: dict[str, list[float]] = {verb: [] for verb in verbs}
        self._raw.command("SLOWLOG", "RESET")
        for _ in range(ROUNDS):
            for verb, call in verbs.items():
                before = self._cpu()
                call()
                cpu[verb].append((self._cpu() - before) * 1e3)
        calls = [
            (entry[2] / 1e3, entry[3][1].rpartition(b"_")[2].decode())
            for entry in self._raw.command("SLOWLOG", "GET", -1)
            if entry[3][0] == b"FCALL"
        ]
        for verb, used in cpu.items():
            took = sorted(ms for ms, script in calls if script == verb)
            print(
                f"{name + ': ' + verb:<58} longest {took[-1]:6.2f} ms  p95 {took[len(took) * 95 // 100]:6.2f}  "
                f"p50 {took[len(took) // 2]:6.2f}   longest by processor time {max(used):6.2f} ms   (reach <= {REACH})",
                flush=True,
            )
        self._raw.command("FLUSHALL")


def delayed(watched: Watched, name: str, tasks: int, make: Callable[[int], Message]) -> None:
    """Very many tasks fall due, or are too late, in one microsecond."""
    fill(watched.store, tasks, make)
    watched.clock.advance(LATER)
    watched.work(f"{tasks:,} {name}")


def leases(watched: Watched, name: str, tasks: int, together: int, code: Callable[[int], str | None]) -> None:
    """Very many leases end in one microsecond; ``together`` were claimed in each batch."""
    fill(watched.store, tasks, lambda i: message(partition=code(i)))
    for _ in range(tasks // together):
        watched.store.reserve(Reserve(queues=["q"], limit=together, worker="w", lease=LATER * SECOND))
    watched.clock.advance(LATER)
    watched.work(f"{tasks:,} leases end together, {name}")


def parked(watched: Watched, tasks: int, n: int) -> None:
    """A key's n slots are freed at once before very many parked tasks, each in a partition of its own."""
    limit = Limit("k", n)
    fill(watched.store, n, lambda i: message(limit=limit))
    watched.store.reserve(Reserve(queues=["q"], limit=n, worker="w", lease=LATER * SECOND))
    fill(watched.store, tasks, lambda i: message(limit=limit, partition=f"p{i}"))
    watched.clock.advance(LATER)
    watched.work(f"{n} of {tasks:,} parked tasks return")


def main(kind: str, tasks: int) -> None:
    """Print all figures."""
    watched = Watched(kind)
    late, full = Moment(LATER * SECOND, relative=True), Limit("full", 1)
    delayed(watched, "due at once, unpartitioned", tasks, lambda i: message(delay=LATER))
    delayed(watched, "due at once, ordered partitions", tasks, lambda i: message(delay=LATER, partition=f"!{i}"))
    delayed(watched, "due at once, 10 ordered", tasks // 10, lambda i: message(delay=LATER, partition=f"!{i % 10}"))
    delayed(watched, "due at once, of a full key", tasks // 10, lambda i: message(delay=LATER, limit=full))
    delayed(watched, "too late at once", tasks // 10, lambda i: msgspec.structs.replace(message(), expires=late))
    leases(watched, "unpartitioned", tasks // 10, 100, lambda i: None)
    leases(watched, "ordered partitions", tasks // 10, 100, lambda i: f"!{i}")
    leases(watched, "runs of 100", tasks // 10, 1000, lambda i: f"!{i % 10}")
    parked(watched, tasks // 10, 200)
    watched.store.close()


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "redis",
        int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000,
    )
