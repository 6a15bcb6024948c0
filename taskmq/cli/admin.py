"""``taskmq admin``: what only who has the database may do – the first credentials, tokens, applications, namespaces."""

from __future__ import annotations

import click

from taskmq.cli.admin_places import application, namespace, queue
from taskmq.cli.admin_tokens import token
from taskmq.cli.credentials import a_name, check_migrated, credentials, file_options, new_file, place_options, write
from taskmq.cli.database import database_option
from taskmq.cli.migrate import opened
from taskmq.cli.output import echo_fields, json_option
from taskmq.clock import SystemClock


@click.group("admin")
def command() -> None:
    """What only who has the database may do."""


@command.command()
@database_option
@place_options
@click.option("--queue", metavar="NAME", required=True, callback=a_name)
@click.option("--worker-access", is_flag=True, help="Also scopes for workers.")
@file_options
@json_option
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
    as_json: bool,
) -> None:
    """Make what is missing of an application, a namespace, an environment and a queue; and always a new token.

    The token goes into the file and nowhere else.
    """
    with new_file(output) as file, opened(database) as db:
        from taskmq.server.database import directory
        from taskmq.server.database import queues as queue_rows
        from taskmq.server.permissions import BOOTSTRAP, WORKER, Grant
        from taskmq.server.stores import Stores

        check_migrated(db)
        grants = [Grant(scope) for scope in (*BOOTSTRAP, *(WORKER if worker_access else ()))]
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
        write(file, credentials(made, grants, names, url, {"queue_id": record.queue_id, "name": queue}))
    ids = {"queue_id": record.queue_id, "token_id": made.token_id}
    echo_fields(as_json, **names, queue=queue, **ids, output=output)


for group in (token, application, namespace, queue):
    command.add_command(group)
