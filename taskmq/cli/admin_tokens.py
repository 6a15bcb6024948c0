"""``taskmq admin token``: make, list, revoke and replace tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskmq.cli.credentials import (
    a_name,
    check_migrated,
    credentials,
    days,
    file_options,
    new_file,
    place_options,
    write,
)
from taskmq.cli.database import CONFLICT, MISSING, database_option
from taskmq.cli.exits import USAGE, CliError
from taskmq.cli.migrate import opened
from taskmq.cli.output import echo_fields, echo_json, echo_table, iso, json_option
from taskmq.clock import SystemClock

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from taskmq.server.database.directory import Place
    from taskmq.server.permissions import Grant


@click.group()
def token() -> None:
    """Make, list, revoke and replace tokens."""


@token.command()
@database_option
@place_options
@click.option("--scope", "scopes", metavar="S[:Q,…]", multiple=True, required=True, help="For all queues or these.")
@click.option("--name", metavar="NAME", default="cli", show_default=True, callback=a_name)
@file_options
@json_option
def create(
    database: str | None,
    application: str,
    namespace: str,
    environment: str,
    scopes: tuple[str, ...],
    name: str,
    url: str | None,
    expires: int | None,
    output: str,
    as_json: bool,
) -> None:
    """Make a token; the only way to grant limits:manage and tokens:manage."""
    with new_file(output) as file, opened(database) as db:
        from taskmq.server.database import directory

        check_migrated(db)
        with db.write() as connection:
            place = _place(connection, application, namespace, environment)
            grants = [_grant(connection, place, scope) for scope in scopes]
            expires_at = None if expires is None else SystemClock().now() + expires
            made = directory.make_token(connection, place.environment_id, name, grants, expires_at)
            directory.note(connection, place.environment_id, "cli", "token.create", made.token_id)
        names = {"application": application, "namespace": namespace, "environment": environment}
        write(file, credentials(made, grants, names, url, None))
    echo_fields(as_json, token_id=made.token_id, output=output)


def _place(connection: Connection, application: str, namespace: str, environment: str) -> Place:
    from taskmq.server.database import directory

    place = directory.find_place(connection, application, namespace, environment)
    if place is None:
        raise CliError(f"there is no environment {application}/{namespace}/{environment}", MISSING)
    return place


def _grant(connection: Connection, place: Place, text: str) -> Grant:
    from taskmq.server.database import queues as queue_rows
    from taskmq.server.permissions import Grant, parse_scope

    try:
        scope, names = parse_scope(text)
    except ValueError as error:
        raise CliError(str(error), USAGE) from None
    if names is None:
        return Grant(scope)
    records = {name: queue_rows.by_name(connection, place.environment_id, name) for name in names}
    missing = [name for name, record in records.items() if record is None]
    if missing:
        raise CliError(f"there is no queue {missing[0]}", MISSING)
    return Grant(scope, [record.queue_id for record in records.values() if record is not None])


@token.command("list")
@database_option
@json_option
def list_tokens(database: str | None, as_json: bool) -> None:
    """List tokens, without their secrets."""
    with opened(database) as db:
        from taskmq.server.database import directory

        with db.read() as connection:
            rows = directory.list_tokens(connection)
    columns = ("token_id", "name", "environment_id", "created_at", "expires_at", "revoked_at")
    if as_json:
        for row in rows:
            echo_json({**row, **{name: iso(row[name]) for name in columns[3:]}})
        return
    echo_table(columns, [[str(row[c]) if c in columns[:3] else iso(row[c]) or "" for c in columns] for row in rows])


@token.command()
@database_option
@click.argument("token_id")
def revoke(database: str | None, token_id: str) -> None:
    """End a token; servers notice within five seconds."""
    with opened(database) as db:
        from taskmq.server.database import directory

        with db.write() as connection:
            if not directory.revoke_token(connection, token_id):
                raise CliError(f"there is no token {token_id}", MISSING)
            directory.note(connection, None, "cli", "token.revoke", token_id)
    click.echo(f"token_id={token_id} revoked=true")


@token.command()
@database_option
@click.argument("token_id")
@click.option("--overlap", metavar="1h", callback=days, help="How long the old one still opens. [not at all]")
@file_options
@json_option
def rotate(
    database: str | None,
    token_id: str,
    overlap: int | None,
    url: str | None,
    expires: int | None,
    output: str,
    as_json: bool,
) -> None:
    """Replace a token: a new one with the same scopes; the old one ends when the overlap is over."""
    with new_file(output) as file, opened(database) as db:
        from taskmq.server.database import directory

        check_migrated(db)
        with db.write() as connection:
            old = directory.find_token(connection, token_id)
            if old is None:
                raise CliError(f"there is no token {token_id}", MISSING)
            now = SystemClock().now()
            if old.ended(now):
                raise CliError(f"the token {token_id} has ended: make a new one", CONFLICT)
            expires_at = None if expires is None else now + expires
            made = directory.make_token(connection, old.environment_id, old.name, old.grants, expires_at)
            directory.end_token(connection, token_id, now + (overlap or 0))
            directory.note(connection, old.environment_id, "cli", "token.rotate", f"{token_id} {made.token_id}")
            names = directory.names_of(connection, old.environment_id)
        write(file, credentials(made, old.grants, names, url, None))
    echo_fields(as_json, token_id=made.token_id, replaces=token_id, output=output)
