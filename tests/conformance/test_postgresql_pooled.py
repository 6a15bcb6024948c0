"""PostgreSQL behind a real pgbouncer in transaction mode – nothing prepared, nothing heard – keeps its promises."""

from __future__ import annotations

from pathlib import Path

from taskmq.testing.clock import FakeClock
from taskmq.testing.conformance import conformance
from taskmq.testing.pgbouncer import pgbouncer
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store


def _opened(clock: FakeClock, place: Path) -> Store:
    pooler = pgbouncer()
    return open_store(pooler.url(pooler.server.place(str(place)), prepared="off"), clock=clock)


FAMILIES = ("publish", "order", "turns", "settle", "leases", "limits", "watch", "processes")
globals().update(conformance(_opened, supports=FAMILIES))
