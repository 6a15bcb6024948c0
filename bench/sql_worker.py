"""PostgreSQL: workers with a no-op handler, one process each: ours against procrastinate, pgqueuer, celery with Redis.

Ours with its default settings, theirs with what is quick for them: procrastinate a hundred coroutines, pgqueuer batches
of a hundred, celery eight threads on a Redis that keeps nothing on disk. Tasks are published first; the rate is taken
between the handler calls of the tenth part and of the last. Durable settings of the database for all three; sides take
turns, medians.

    python -m bench.sql_worker [postgresql|postgresql-new] [TASKS] [ROUNDS]

Makes an environment for each peer at its first use, see ``bench/peers``. The bare loop that our worker is compared
with: ``python -m bench.sql_rates``.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import psycopg

from bench.common import alternate, report
from bench.peers import OURS, PYTHON, Peer
from bench.place import Place
from bench.sql_place import SERVERS
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.registry import open_schema


class SqlPeer(Peer):
    """One whose tasks are in PostgreSQL; before it starts the server has looked at them, as it would before long."""

    def fill(self, environment: dict[str, str]) -> None:
        """Publish, then let the server vacuum and count."""
        super().fill(environment)
        with psycopg.connect(environment["URL"], autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


US = SqlPeer(OURS.name, OURS.packages, OURS.worker)
PROCRASTINATE = SqlPeer(
    "procrastinate", ("procrastinate",), ("procrastinate", "-a", "with_procrastinate.app", "worker", "-c", "100")
)
PGQUEUER = SqlPeer("pgqueuer", ("pgqueuer[asyncpg,cli]", "uvloop"), ("python", "with_pgqueuer.py"))
CELERY = next(peer for peer in PYTHON if peer.name == "celery")
REACHES = {"procrastinate": ">= 5", "pgqueuer": ">= 5", "celery": ">= 1"}


class Database:
    """A database of its own, made anew for each side; it stands where peers expect a place of Redis."""

    def __init__(self, server: Any) -> None:
        self.server = postgres_server(server)
        self.tcp = ""
        """Its URL: of a unix socket, for all three."""

    def empty(self) -> None:
        """A new database with our tables; peers bring their own."""
        self.server.execute("DROP DATABASE IF EXISTS peers WITH (FORCE)")
        self.server.execute("CREATE DATABASE peers")
        self.tcp = self.server.url(database="peers")
        open_schema(self.tcp).up()


def main(server: str, tasks: int, rounds: int) -> None:
    """Print ours against each."""
    database: Any = Database(server)
    redis = Place()
    peers: list[Peer] = [PROCRASTINATE, PGQUEUER, CELERY]
    print(", ".join(f"{peer.name} {peer.version()}" for peer in peers), flush=True)
    sides = [
        lambda: US.working(database, tasks),
        lambda: PROCRASTINATE.working(database, tasks // 20),
        lambda: PGQUEUER.working(database, tasks),
        lambda: CELERY.working(redis, tasks // 10),
    ]
    ours, *others = alternate(sides, rounds)
    for peer, theirs in zip(peers, others, strict=True):
        name = f"{server}: worker, no-op: ours / {peer.name}"
        report(name, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, REACHES[peer.name])
    with suppress(Exception):
        database.server.execute("DROP DATABASE peers WITH (FORCE)")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word in SERVERS]
    numbers = [int(word) for word in sys.argv[1:] if word not in SERVERS]
    main(words[0] if words else "postgresql", *(numbers + [100_000, 3][len(numbers) :]))
