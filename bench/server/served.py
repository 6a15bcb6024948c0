"""A server in a process of its own, on a fresh database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.common import folder
from taskmq.client import Client
from taskmq.server.stores import Stores
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.serving import ServingStore

PLACE = ("--application", "a", "--namespace", "n", "--environment", "e", "--queue", "initial")


@dataclass
class Served:
    """A running server: where it listens, its database, its process, the credentials of one environment."""

    kind: str
    url: str
    database: str
    process: psutil.Process
    credentials: Path
    stores: Stores

    @property
    def token(self) -> str:
        """The bearer token."""
        return str(json.loads(self.credentials.read_text())["token"])

    def new_token(self) -> str:
        """One more token of the same environment: what is limited for each token is not, for several."""
        from taskmq.server.database import directory
        from taskmq.server.database.engine import Database
        from taskmq.server.permissions import BOOTSTRAP, WORKER, Grant

        database = Database(self.database)
        try:
            with database.write() as connection:
                place = directory.make_place(connection, "a", "n", "e")
                grants = [Grant(scope) for scope in (*BOOTSTRAP, *WORKER)]
                return directory.make_token(connection, place.environment_id, "bench", grants, None).token
        finally:
            database.close()

    @property
    def environment(self) -> str:
        """The environment's id, which is its store's namespace."""
        from taskmq.server.database import directory
        from taskmq.server.database.engine import Database

        database = Database(self.database)
        try:
            with database.read() as connection:
                place = directory.find_place(connection, "a", "n", "e")
        finally:
            database.close()
        assert place is not None
        return place.environment_id

    def client(self) -> Client:
        """A client of it."""
        return Client(self.url, str(self.credentials), timeout=60)

    def store(self) -> ServingStore:
        """The library on the same tables, for another namespace: the side to compare with."""
        return self.stores.of("library")


def _fresh(kind: str, path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{path / 't.db'}"
    server = postgres_server("postgresql")
    place = f"bench_{path.name.replace('-', '_')}".lower()
    server.execute(f"CREATE SCHEMA {place}")
    return server.url(place)


@contextmanager
def served(kind: str) -> Iterator[Served]:
    """A server on SQLite with its default settings, or on a PostgreSQL of this machine."""
    with folder() as path:
        database = _fresh(kind, path)
        env = {**os.environ, "TASKMQ_DATABASE_URL": database}
        taskmq = [sys.executable, "-m", "taskmq"]
        subprocess.run([*taskmq, "migrate", "up"], env=env, check=True, capture_output=True)
        credentials = path / "c.json"
        bootstrap = [*taskmq, "admin", "bootstrap", *PLACE, "--worker-access", "--output", str(credentials)]
        subprocess.run(bootstrap, env=env, check=True, capture_output=True)
        command = [*taskmq, "server", "--http-addr", "127.0.0.1:0"]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        stores = Stores(database)
        try:
            url = process.stdout.readline().strip().partition("=")[2]
            yield Served(kind, url, database, psutil.Process(process.pid), credentials, stores)
        finally:
            stores.close()
            process.terminate()
            process.wait(20)
            process.stdout.close()
