"""``taskmq migrate``: bring a SQL database to the schema of this program, or back.

One schema for workers and server: the store's tables, and the few that only a server uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from taskmq.cli.database import database_or_url_option, database_url, protocol_exits
from taskmq.cli.output import echo_json, json_option

if TYPE_CHECKING:
    from taskmq.server.database.engine import Database


@contextmanager
def opened(url: str | None) -> Iterator[Database]:
    """The database, closed at the end."""
    with protocol_exits():
        from taskmq.server.database.engine import Database

        database = Database(database_url(url))
        try:
            yield database
        finally:
            database.close()


@click.group("migrate")
def command() -> None:
    """Bring a SQL database to the schema of this program, or back.

    Workers on SQLite and Redis need none of it: what they need they make when they are opened. A PostgreSQL, MySQL or
    MariaDB database does, and so does the file of a server.
    """


@command.command()
@database_or_url_option
@click.option("--to", metavar="N", type=click.IntRange(0), help="Up to this step. [the latest]")
@json_option
def up(database: str | None, to: int | None, as_json: bool) -> None:
    """Apply what is missing."""
    with opened(database) as db:
        from taskmq.server.database import migrations

        applied = migrations.up(db, to)
        current = migrations.status(db).current
    _say(as_json, applied=applied, current=f"{current:06d}")


@command.command()
@database_or_url_option
@json_option
def status(database: str | None, as_json: bool) -> int:
    """Say where the database is; exit code 1 if steps are missing."""
    with opened(database) as db:
        from taskmq.server.database import migrations

        found = migrations.status(db)
    _say(as_json, current=f"{found.current:06d}", latest=f"{found.latest:06d}", pending=found.pending)
    return int(found.pending > 0)


@command.command()
@database_or_url_option
@click.option("--to", metavar="N", type=click.IntRange(0), required=True, help="Undo all steps above this one.")
@click.option("--yes", is_flag=True, help="Yes, with all that is in their tables.")
@json_option
def down(database: str | None, to: int, yes: bool, as_json: bool) -> None:
    """Undo steps, with all that is in their tables."""
    if not yes:
        raise click.UsageError("this deletes what is in the tables; say --yes")
    with opened(database) as db:
        from taskmq.server.database import migrations

        undone = migrations.down(db, to)
        current = migrations.status(db).current
    _say(as_json, undone=undone, current=f"{current:06d}")


@command.command()
@database_or_url_option
@click.option("--to", metavar="N", type=click.IntRange(0), help="Up to this step.")
def sql(database: str | None, to: int | None) -> None:
    """Print the statements for a new database; without --database for SQLite."""
    with protocol_exits():
        from taskmq.server.database import migrations

        for statement in migrations.statements(to, database or "sqlite:///:memory:"):
            click.echo(statement)


def _say(as_json: bool, **values: int | str) -> None:
    if as_json:
        echo_json(values)
    else:
        click.echo(" ".join(f"{name}={value}" for name, value in values.items()))
