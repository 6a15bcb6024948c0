"""A PostgreSQL or MariaDB server of the benchmark's own, and empty places on it; what the SQL figures share.

Servers keep their durable settings; their data is in memory where the machine has such a place. Every command of
``bench/sql_*`` takes ``[SERVER…] [SIZE]``: the servers it measures, all three if none is named, and its size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from taskmq.testing.mariadb_server import mariadb_server
from taskmq.testing.sql_fill import Server
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store

SERVERS = ("postgresql", "postgresql-new", "mariadb")


def server_of(name: str) -> Server:
    """The server of this name."""
    if name == "mariadb":
        return mariadb_server()
    return postgres_server("postgresql-new" if name == "postgresql-new" else "postgresql")


def url_of(server: str, place: str) -> str:
    """The URL of a place on the server, empty when it is first asked for."""
    running = server_of(server)
    return running.url(running.place(place))


def store_on(server: str, place: str) -> Store:
    """A store on it."""
    return open_store(url_of(server, place))


def connect(url: str) -> Any:
    """The driver's own connection to a place, each statement in a transaction of its own."""
    if url.startswith("mariadb"):
        from taskmq.transport.sql.mysql.connection import connect as connect_mysql
        from taskmq.transport.sql.mysql.settings import Settings as MysqlSettings

        return connect_mysql(MysqlSettings(url))
    import psycopg

    from taskmq.transport.sql.postgresql.settings import Settings

    return psycopg.connect(**Settings(url).parameters, autocommit=True)  # type: ignore[arg-type]


def settle_down(url: str) -> None:
    """Let the server do now what it would do some time after so many rows: statistics, vacuum."""
    connection = connect(url)
    if url.startswith("mariadb"):
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE TABLE taskmq_tasks, taskmq_flows")
            cursor.fetchall()
    else:
        connection.execute("VACUUM ANALYZE")
    connection.close()


def run(measure: Callable[[str, int], None], size: int, servers: Sequence[str] = SERVERS) -> None:
    """Measure each server of the command line, with its size."""
    named = [word for word in sys.argv[1:] if word in SERVERS]
    sizes = [int(word.replace("_", "")) for word in sys.argv[1:] if word not in SERVERS]
    for server in named or servers:
        measure(server, sizes[0] if sizes else size)
