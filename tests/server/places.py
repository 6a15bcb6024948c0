"""Databases for servers under test: one of each kind, each empty."""

from __future__ import annotations

from pathlib import Path

from taskmq.ids import new_id
from taskmq.testing.mariadb_server import mariadb_server
from taskmq.testing.sql_servers import postgres_server

KINDS = ("sqlite", "postgresql", "mariadb")


def database(kind: str, path: Path) -> str:
    """The URL of a new database."""
    name = f"server_{new_id()}"
    if kind == "postgresql":
        postgres = postgres_server()
        postgres.execute(f"CREATE SCHEMA {name}")
        return postgres.url(name)
    if kind == "mariadb":
        mariadb = mariadb_server()
        mariadb.execute(f"CREATE DATABASE {name}")
        return mariadb.url(name)
    return f"sqlite:///{path / 'server.db'}?synchronous=off"
