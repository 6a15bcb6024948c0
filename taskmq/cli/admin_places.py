"""``taskmq admin application|namespace|queue``: who pays, and what belongs to whom."""

from __future__ import annotations

import click

from taskmq.cli.credentials import a_name, check_migrated
from taskmq.cli.database import CONFLICT, MISSING, database_option
from taskmq.cli.exits import CliError
from taskmq.cli.migrate import opened
from taskmq.cli.output import echo_json, echo_table, iso, json_option


def _listing(database: str | None, as_json: bool, table: str, columns: tuple[str, ...]) -> None:
    with opened(database) as db:
        from sqlalchemy import select

        from taskmq.server.database import tables

        source = getattr(tables, table)
        with db.read() as connection:
            rows = [dict(row) for row in connection.execute(select(source).order_by(source.c.created_at)).mappings()]
    for row in rows:
        row["created_at"] = iso(row["created_at"])
    if as_json:
        for row in rows:
            echo_json({name: row[name] for name in columns})
    else:
        echo_table(columns, [[str(row[name] or "") for name in columns] for row in rows])


@click.group()
def application() -> None:
    """Who pays."""


@application.command("list")
@database_option
@json_option
def list_applications(database: str | None, as_json: bool) -> None:
    """List applications."""
    _listing(database, as_json, "applications", ("application_id", "name", "created_at"))


@application.command("create")
@database_option
@click.argument("name", callback=a_name)
def create_application(database: str | None, name: str) -> None:
    """Make an application."""
    with opened(database) as db:
        from taskmq.server.database import directory

        check_migrated(db)
        with db.write() as connection:
            if directory.find_application(connection, name) is not None:
                raise CliError(f"there is an application {name} already", CONFLICT)
            application_id = directory.make_application(connection, name)
            directory.note(connection, None, "cli", "application.create", application_id)
    click.echo(f"application={name} application_id={application_id}")


@click.group()
def namespace() -> None:
    """Namespaces of applications."""


@namespace.command("list")
@database_option
@json_option
def list_namespaces(database: str | None, as_json: bool) -> None:
    """List namespaces."""
    _listing(database, as_json, "namespaces", ("namespace_id", "application_id", "name", "created_at"))


@namespace.command("create")
@database_option
@click.option("--application", "owner", metavar="NAME", required=True, callback=a_name)
@click.argument("name", callback=a_name)
def create_namespace(database: str | None, owner: str, name: str) -> None:
    """Make a namespace of an application."""
    with opened(database) as db:
        from taskmq.server.database import directory

        check_migrated(db)
        with db.write() as connection:
            application_id = directory.find_application(connection, owner)
            if application_id is None:
                raise CliError(f"there is no application {owner}", MISSING)
            if directory.find_namespace(connection, name) is not None:
                raise CliError(f"there is a namespace {name} already", CONFLICT)
            namespace_id = directory.make_namespace(connection, name, application_id)
            directory.note(connection, None, "cli", "namespace.create", namespace_id)
    click.echo(f"namespace={name} namespace_id={namespace_id} application={owner}")


@click.group()
def queue() -> None:
    """Queues of all environments."""


@queue.command("list")
@database_option
@json_option
def list_queues(database: str | None, as_json: bool) -> None:
    """List queues."""
    _listing(database, as_json, "queues", ("queue_id", "environment_id", "name", "revision", "created_at"))
