"""``taskmq admin``: what only who has the database may do – the first credentials, tokens, applications, namespaces."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from taskmq.cli.database import CONFLICT, MISSING, database_option
from taskmq.cli.exits import FAILED, USAGE, CliError
from taskmq.cli.migrate import opened
from taskmq.cli.output import echo_json, echo_table, iso, json_option
from taskmq.clock import SystemClock
from taskmq.durations import microseconds
from taskmq.names import check_name

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from taskmq.server.database.directory import NewToken, Place
    from taskmq.server.database.engine import Database
    from taskmq.server.permissions import Grant

_LONGEST = 10 * 365 * 86400.0
_PLACE = ("application", "namespace", "environment")


def place_options(command: Any) -> Any:
    """Add ``--application``, ``--namespace`` and ``--environment``."""
    for name in reversed(_PLACE):
        command = click.option(f"--{name}", metavar="NAME", required=True, callback=_a_name)(command)
    return command


def _a_name(_: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return value if value is None else check_name(f"--{param.name}", value)


def _days(_: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A duration, also in days."""
    if value is None:
        return None
    if re.fullmatch(r"[0-9]{1,5}d", value):
        value = f"{int(value[:-1]) * 24}h"
    return microseconds(f"--{param.name}", value, 1.0, _LONGEST)


@click.group("admin")
def command() -> None:
    """What only who has the database may do."""


@command.command()
@database_option
@place_options
@click.option("--queue", metavar="NAME", required=True, callback=_a_name)
@click.option("--worker-access", is_flag=True, help="Also scopes for workers.")
@click.option("--url", metavar="URL", help="Of the server, to be written into the file.")
@click.option("--expires", metavar="90d", callback=_days, help="When the token ends. [never]")
@click.option("--output", metavar="FILE", required=True, help="A new file for the credentials, mode 0600.")
def bootstrap(
    database: str | None,
    application: str,
    namespace: str,
    environment: str,
    queue: str,
    worker_access: bool,
    url: str | None,
    expires: int | None,
    output: str,
) -> None:
    """Make what is missing of an application, a namespace, an environment and a queue; and always a new token.

    The token goes into the file and nowhere else.
    """
    with opened(database) as db:
        from taskmq.server.database import directory
        from taskmq.server.database import queues as queue_rows
        from taskmq.server.permissions import BOOTSTRAP, WORKER, Grant
        from taskmq.server.stores import Stores

        _check_migrated(db)
        grants = [Grant(scope) for scope in (*BOOTSTRAP, *(WORKER if worker_access else ()))]
        with _new_file(output) as file:
            with db.write() as connection:
                place = directory.make_place(connection, application, namespace, environment)
                record = directory.make_queue(connection, place.environment_id, queue)
                expires_at = None if expires is None else SystemClock().now() + expires
                made = directory.make_token(connection, place.environment_id, "bootstrap", grants, expires_at)
                directory.note(connection, place.environment_id, "cli", "bootstrap", made.token_id)
            stores = Stores(db.url)
            try:
                settings = {record.queue_id: record.settings.config()}
                stores.of(place.environment_id).configure_queues(settings, overwrite=record.applied == 0)
            finally:
                stores.close()
            with db.write() as connection:
                queue_rows.mark_applied(connection, record)
            names = {"application": application, "namespace": namespace, "environment": environment}
            _write(file, _credentials(made, grants, names, url, {"queue_id": record.queue_id, "name": queue}))
    click.echo(
        f"application={application} namespace={namespace} environment={environment} queue={queue} "
        f"queue_id={record.queue_id} token_id={made.token_id} output={output}"
    )


def _check_migrated(db: Database) -> None:
    from taskmq.server.database import migrations

    pending = migrations.status(db).pending
    if pending:
        raise CliError(f"{pending} migrations are missing: taskmq migrate up", USAGE)


@contextlib.contextmanager
def _new_file(path: str) -> Any:
    """A new private file; removed again if anything fails."""
    from taskmq.wire.credentials import create_private

    try:
        file = create_private(path)
    except FileExistsError:
        raise CliError(f"{path} exists; nothing was done", CONFLICT) from None
    except OSError as error:
        code = CONFLICT if os.path.islink(path) else FAILED
        raise CliError(f"{path} cannot be made: {error.strerror or error}", code) from None
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(file)


def _write(file: int, content: dict[str, Any]) -> None:
    from taskmq.wire.strict import dumps

    data = dumps(content) + b"\n"
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)


def _credentials(
    made: NewToken, grants: Iterable[Grant], names: dict[str, str], url: str | None, queue: dict[str, str] | None
) -> dict[str, Any]:
    return {
        "format": 1,
        **({} if url is None else {"url": url}),
        **names,
        "token_id": made.token_id,
        "token": made.token,
        "scopes": [{"scope": grant.scope, "queues": grant.queues} for grant in grants],
        **({} if queue is None else {"queue": queue}),
        "created_at": iso(made.created_at),
        "expires_at": iso(made.expires_at),
    }


# ── tokens ──


@command.group()
def token() -> None:
    """Make, list, revoke and replace tokens."""


@token.command()
@database_option
@place_options
@click.option("--scope", "scopes", metavar="S[:Q,…]", multiple=True, required=True, help="For all queues or these.")
@click.option("--name", metavar="NAME", default="cli", show_default=True, callback=_a_name)
@click.option("--url", metavar="URL", help="Of the server, to be written into the file.")
@click.option("--expires", metavar="90d", callback=_days)
@click.option("--output", metavar="FILE", required=True)
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
) -> None:
    """Make a token; the only way to grant limits:manage and tokens:manage."""
    with opened(database) as db:
        from taskmq.server.database import directory

        _check_migrated(db)
        with _new_file(output) as file:
            with db.write() as connection:
                place = _place(connection, application, namespace, environment)
                grants = [_grant(connection, place, scope) for scope in scopes]
                expires_at = None if expires is None else SystemClock().now() + expires
                made = directory.make_token(connection, place.environment_id, name, grants, expires_at)
                directory.note(connection, place.environment_id, "cli", "token.create", made.token_id)
            names = {"application": application, "namespace": namespace, "environment": environment}
            _write(file, _credentials(made, grants, names, url, None))
    click.echo(f"token_id={made.token_id} output={output}")


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


# ── what there is ──


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


@command.group()
def application() -> None:
    """Who pays."""


@application.command("list")
@database_option
@json_option
def list_applications(database: str | None, as_json: bool) -> None:
    """List applications."""
    _listing(database, as_json, "applications", ("application_id", "name", "created_at"))


@command.group()
def namespace() -> None:
    """Namespaces of applications."""


@namespace.command("list")
@database_option
@json_option
def list_namespaces(database: str | None, as_json: bool) -> None:
    """List namespaces."""
    _listing(database, as_json, "namespaces", ("namespace_id", "application_id", "name", "created_at"))


@command.group()
def queue() -> None:
    """Queues of all environments."""


@queue.command("list")
@database_option
@json_option
def list_queues(database: str | None, as_json: bool) -> None:
    """List queues."""
    _listing(database, as_json, "queues", ("queue_id", "environment_id", "name", "revision", "created_at"))
