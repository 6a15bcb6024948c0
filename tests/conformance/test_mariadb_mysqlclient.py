"""MariaDB over mysqlclient instead of PyMySQL keeps its promises: those that depend on what a driver does."""

from __future__ import annotations

from pathlib import Path

from taskmq.testing.clock import FakeClock
from taskmq.testing.conformance import conformance
from taskmq.testing.mariadb_server import mariadb_server
from taskmq.testing.mysqldb import need_mysqldb
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store


def _opened(clock: FakeClock, place: Path) -> Store:
    need_mysqldb()
    server = mariadb_server()
    return open_store(server.url(server.place(str(place)), scheme="mariadb+mysqldb"), clock=clock)


FAMILIES = ("publish", "idempotency", "settle", "runs", "limits")
globals().update(conformance(_opened, supports=FAMILIES))
