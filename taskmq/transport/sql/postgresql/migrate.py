"""Bringing a PostgreSQL database to the schema of this version."""

from __future__ import annotations

from contextlib import closing

import psycopg

from taskmq.transport.sql.codes import SCHEMA_VERSION
from taskmq.transport.sql.postgresql.ddl import drop_statements, statements
from taskmq.transport.sql.postgresql.errors import map_errors, refused
from taskmq.transport.sql.postgresql.settings import Settings


def create(url: str) -> None:
    """Create the schema in a database that has none, all or nothing."""
    settings = Settings(url)
    try:
        connection = psycopg.connect(settings.conninfo)
    except psycopg.Error as error:
        raise refused(error, settings.where) from error
    with closing(connection), map_errors(), connection.transaction():
        for statement in statements():
            connection.execute(statement)
        connection.execute("INSERT INTO taskmq_schema(version) VALUES (%s)", (SCHEMA_VERSION,))


__all__ = ["create", "drop_statements"]
