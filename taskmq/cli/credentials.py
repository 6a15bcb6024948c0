"""What the admin commands share: options that name a place, and files that hold a token."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from taskmq.cli.database import CONFLICT
from taskmq.cli.exits import FAILED, USAGE, CliError
from taskmq.cli.output import iso
from taskmq.durations import microseconds
from taskmq.names import check_name

if TYPE_CHECKING:
    from taskmq.server.database.directory import NewToken
    from taskmq.server.database.engine import Database
    from taskmq.server.permissions import Grant

_LONGEST = 10 * 365 * 86400.0
_PLACE = ("application", "namespace", "environment")


def place_options(command: Any) -> Any:
    """Add ``--application``, ``--namespace`` and ``--environment``."""
    for name in reversed(_PLACE):
        command = click.option(f"--{name}", metavar="NAME", required=True, callback=a_name)(command)
    return command


def file_options(command: Any) -> Any:
    """Add ``--url``, ``--expires`` and ``--output``: a new token, and the file that it goes into."""
    options = (
        click.option("--url", metavar="URL", help="Of the server, to be written into the file."),
        click.option("--expires", metavar="90d", callback=days, help="When the token ends. [never]"),
        click.option("--output", metavar="FILE", required=True, help="A new file for the credentials, mode 0600."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def a_name(_: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A name, checked."""
    return value if value is None else check_name(f"--{param.name}", value)


def days(_: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A duration, also in days."""
    if value is None:
        return None
    if re.fullmatch(r"[0-9]{1,5}d", value):
        value = f"{int(value[:-1]) * 24}h"
    return microseconds(f"--{param.name}", value, 1.0, _LONGEST)


def check_migrated(db: Database) -> None:
    """Raise where the database is behind the program."""
    from taskmq.server.database import migrations

    pending = migrations.status(db).pending
    if pending:
        raise CliError(f"{pending} migrations are missing: taskmq migrate up", USAGE)


@contextlib.contextmanager
def new_file(path: str) -> Any:
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


def write(file: int, content: dict[str, Any]) -> None:
    """Write it, down to the disk."""
    from taskmq.wire.strict import dumps

    data = dumps(content) + b"\n"
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)


def credentials(
    made: NewToken, grants: Iterable[Grant], names: dict[str, str], url: str | None, queue: dict[str, str] | None
) -> dict[str, Any]:
    """The content of a credentials file."""
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
