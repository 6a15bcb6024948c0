"""A migration while workers of the old version publish and work, and then beside one of the new version.

python -m tests.sql.online [postgresql|postgresql-new|mariadb] [TASKS]    by hand; the suite runs it with fewer tasks
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import psycopg
import pymysql
from msgspec.structs import replace as with_priority

from taskmq.testing.mariadb_server import MariadbServer
from taskmq.testing.sql_fill import Server
from taskmq.transport.registry import open_store
from taskmq.transport.sql.migrations import Migrator, Step
from taskmq.transport.sql.mysql import migrate as mysql
from taskmq.transport.sql.mysql.settings import Settings as MysqlSettings
from taskmq.transport.sql.postgresql import migrate as postgresql
from taskmq.transport.sql.postgresql.settings import Settings
from tests.sql.earlier import MARIADB, POSTGRESQL, EarlierWorker, make_earlier
from tests.sql.help import acknowledge, claim, message, publish_all
from tests.sql.sides import shared


@dataclass
class Report:
    """What was seen."""

    seconds: float
    """How long the migration took."""
    longest: float
    """Seconds of the slowest transaction of a worker meanwhile."""
    calls: int
    """How many transactions there were meanwhile."""
    old: list[int]
    new: list[int]
    """What was done by the workers of either version."""
    urgent: list[int]
    """The priorities of the first tasks that the new version took."""


def migrator(server: Server, place: str, *steps: Step) -> Migrator:
    """From schema 1; ``steps`` instead of the one there is."""
    chosen = steps or ((MARIADB,) if isinstance(server, MariadbServer) else (POSTGRESQL,))
    if isinstance(server, MariadbServer):
        hands = mysql.MysqlHands(MysqlSettings(server.url(place)))
        return Migrator(hands, replace(mysql.plan(hands.collation()), steps=chosen))
    return Migrator(postgresql.PgHands(Settings(server.url(place))), replace(postgresql.plan(), steps=chosen))


def run(server: Server, place: str, tasks: int, together: int = 30) -> Report:
    """Migrate a place of schema 1 with so many tasks under load; ``together``: rounds of both versions side by side."""
    make_earlier(server, place, tasks)
    workers = [EarlierWorker(server, place) for _ in range(2)]
    stop, calls, failures = threading.Event(), [0], []

    def go_on(call: Callable[[], None]) -> None:
        while not stop.is_set():
            try:
                call()
            except (psycopg.Error, pymysql.Error) as error:
                failures.append(error)
                return
            calls[0] += 1

    threads = [threading.Thread(target=go_on, args=(call,)) for call in (workers[0].publish, workers[1].work)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    try:
        migrator(server, place).up()
        took, meanwhile = time.monotonic() - began, calls[0]
        longest = max(worker.longest for worker in workers)
        new: list[int] = []
        with closing(open_store(server.url(place))) as store:
            publish_all(store, *(with_priority(message(), priority=9) for _ in range(5)))
            urgent = claim(store, 5)
            for _ in range(together):
                publish_all(store, message())
                held = claim(store, 5)
                assert all(acknowledge(store, held))
                new += [delivery.token for delivery in held]
            assert all(acknowledge(store, urgent))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.connection.close()
    assert failures == [], failures
    new += [delivery.token for delivery in urgent]
    priorities = [delivery.priority for delivery in urgent]
    return Report(took, longest, meanwhile, workers[1].done, new, priorities)


def main(name: str, tasks: int) -> None:
    """Print what was seen."""
    server = shared(name).server
    place = f"online{uuid.uuid4().hex[:8]}"
    kind = "DATABASE" if isinstance(server, MariadbServer) else "SCHEMA"
    server.execute(f"CREATE {kind} {place}")
    seen = run(server, place, tasks)
    sys.stdout.write(
        f"{name}, {tasks:,} tasks: migrated in {seen.seconds:.1f} s; meanwhile {seen.calls:,} transactions of workers, "
        f"the slowest {seen.longest:.2f} s (reach <= 1 s and what the machine adds)\n"
    )


if __name__ == "__main__":
    names = [word for word in sys.argv[1:] if not word.replace("_", "").isdigit()]
    sizes = [int(word.replace("_", "")) for word in sys.argv[1:] if word not in names]
    for chosen in names or ["postgresql", "mariadb"]:
        main(chosen, sizes[0] if sizes else 1_000_000)
