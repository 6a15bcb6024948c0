"""``taskmq migrate``: the schema of a database server."""

from __future__ import annotations

from dataclasses import asdict

import click

from taskmq.cli.exits import FAILED, OK
from taskmq.cli.output import echo_json, json_option
from taskmq.cli.target import Target, load_app, target_options
from taskmq.transport.base import Schema


@click.group("migrate")
def command() -> None:
    """Make the tables of a PostgreSQL database, and bring them up to date.

    SQLite files and the other stores need none of it: what they need they make when they are opened.
    """


def _opened(target: Target) -> Schema:
    from taskmq.config import DEFAULT_URL
    from taskmq.transport.registry import open_schema

    url = load_app(target.app).config.url if target.app is not None else target.url or DEFAULT_URL
    return open_schema(url)


@command.command("up")
@target_options
def up(target: Target) -> None:
    """Make the schema, or bring it to this version's, while workers go on; does nothing where it is up to date."""
    done = _opened(target).up()
    click.echo("\n".join(done) if done else "the schema is up to date")


@command.command("status")
@target_options
@json_option
def status(target: Target, as_json: bool) -> int:
    """Say which schema the database has, and what "up" would do. Exit code 1: something is to be done."""
    found = _opened(target).status()
    if as_json:
        echo_json(asdict(found))
    else:
        click.echo(f"schema {found.found or 'none'}, needed {found.needed}")
        for step in found.steps:
            click.echo(f"to do: {step}")
    return FAILED if found.found != found.needed else OK


@command.command("down")
@target_options
@click.option("--force", is_flag=True, help="Remove the schema although there are unfinished tasks.")
def down(target: Target, force: bool) -> None:
    """Undo the last step of "up"; from the first schema, remove it and all that is stored."""
    click.echo(_opened(target).down(force))


@command.command("sql")
@target_options
@click.option("--from", "found", type=int, metavar="VERSION", help="The schema that is there. [an empty database]")
def sql(target: Target, found: int | None) -> None:
    """Print what "up" would do as SQL, for databases that others change."""
    for statement in _opened(target).sql(found):
        click.echo(statement if statement.startswith("--") else f"{statement};")
