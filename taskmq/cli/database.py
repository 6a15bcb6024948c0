"""Which database the server's commands work on, and their exit codes, which are those of the protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from taskmq.cli.exits import FAILED, USAGE, CliError
from taskmq.errors import ConfigError, InvalidArgument, TaskMQError, TransportError

UNREACHABLE, CONFLICT, MISSING = 3, 4, 5
SQL = ("sqlite", "postgresql", "mysql", "mariadb", "mysql+mysqldb", "mariadb+mysqldb")

_Command = TypeVar("_Command", bound=Callable[..., Any])


_TEXT = "The SQL database. [TASKMQ_DATABASE_URL, or a TASKMQ_URL of a SQL database]"


def database_option(command: _Command) -> _Command:
    """Add ``--database``."""
    return click.option("--database", metavar="URL", help=_TEXT)(command)


def database_or_url_option(command: _Command) -> _Command:
    """Add ``--database``, also as ``--url``: for commands that know no other URL."""
    return click.option("--database", "--url", "database", metavar="URL", help=_TEXT)(command)


def database_url(given: str | None) -> str:
    """The database's URL; warns of a password that everybody can see in the list of processes."""
    if given is not None:
        if urlsplit(given).password and any(given in argument for argument in sys.argv):
            click.echo("taskmq: the password is in the command line, for all to see: use TASKMQ_DATABASE_URL", err=True)
        return given
    url = os.environ.get("TASKMQ_DATABASE_URL")
    if url:
        return url
    url = os.environ.get("TASKMQ_URL", "")
    if url.partition(":")[0] in SQL:
        return url
    raise ConfigError("which database? Give --database, or set TASKMQ_DATABASE_URL, e.g. sqlite:///taskmq.db")


@contextmanager
def protocol_exits() -> Iterator[None]:
    """Errors as one line, with the exit codes of the protocol."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("taskmq"):
            raise
        what = f"the server needs {error.name!r}, which is not installed: pip install taskmq[server]"
        raise CliError(what, USAGE) from error
    except (ConfigError, InvalidArgument) as error:
        raise CliError(str(error), USAGE) from error
    except TransportError as error:
        raise CliError(str(error), UNREACHABLE) from error
    except TaskMQError as error:
        from taskmq.server.database.engine import Conflict

        raise CliError(str(error), CONFLICT if isinstance(error, Conflict) else FAILED) from error
