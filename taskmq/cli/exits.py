"""Exit codes, and how an error becomes one line on stderr.

A command returns its exit code (None: OK) or raises. Whatever it raises leaves as one line that says what, where and
what next; the traceback comes only with ``--debug``.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from taskmq.errors import (
    ConfigError,
    InvalidArgument,
    OutcomeUnknown,
    TaskMQError,
    TaskNotFound,
    TransportError,
    TransportUnavailable,
    UnknownHandler,
)

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
STORE = 4
BUG = 70
INTERRUPTED = 130

EPILOG = """\b
Exit codes:
  0    done; a worker: stopped when asked to, nothing lost; doctor: no error found
  1    the operation failed, in whole or in part; doctor: it found an error
  2    usage or configuration: a wrong option, argument, file, URL or app; nothing was done
  3    not found: there is no such task or handler
  4    the store cannot be reached or answered with an error
  70   a bug in taskmq: please report it with the output of --debug
  130  interrupted
"""

_DEBUG = "taskmq.debug"
_LONGEST = 1000

_CODES: tuple[tuple[type[TaskMQError], int], ...] = (
    (UnknownHandler, NOT_FOUND),
    (TaskNotFound, NOT_FOUND),
    (ConfigError, USAGE),
    (InvalidArgument, USAGE),
    (TransportError, STORE),
    (TaskMQError, FAILED),
)

_NEXT: tuple[tuple[type[TaskMQError], str], ...] = (
    (OutcomeUnknown, "it may or may not have happened: look with taskmq status or taskmq task list"),
    (TransportUnavailable, "nothing happened: try again when the store is back"),
)


class CliError(click.ClickException):
    """What the user is told, in one line, and the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(_line(message))
        self.exit_code = code  # type: ignore[misc]  # click has one a class; ours differ by instance

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line to stderr."""
        click.echo(f"taskmq: {self.message}", file=file, err=file is None)


def _line(text: str) -> str:
    """One line that a terminal can take, and not longer than somebody reads: no control characters, no stray bytes."""
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 200]} … {text[-190:]}"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def explain(error: TaskMQError) -> CliError:
    """The line and the exit code of one of the library's errors."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    advice = next((f" ({text})" for kind, text in _NEXT if isinstance(error, kind)), "")
    return CliError(f"{error}{advice}", code)


def set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Callback of every ``--debug`` option, before or after the command's name."""
    if value:
        ctx.meta[_DEBUG] = True


@contextmanager
def one_line(ctx: click.Context | None = None) -> Iterator[None]:
    """Turn every error inside into a CliError; with ``--debug`` print its traceback first."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except CliError:
        _trace(ctx)
        raise
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "taskmq"
        raise CliError(f"{error.format_message()} (see: {path} --help)", USAGE) from error
    except click.ClickException as error:
        raise CliError(error.format_message(), error.exit_code) from error
    except click.Abort as error:
        raise CliError("stopped at the question; nothing was done", FAILED) from error
    except KeyboardInterrupt as error:
        raise CliError("interrupted", INTERRUPTED) from error
    except BrokenPipeError:
        raise  # the reader of our output is gone: click ends quietly
    except TaskMQError as error:
        _trace(ctx)
        raise explain(error) from error
    except Exception as error:
        _trace(ctx)
        raise CliError(f"unexpected {type(error).__name__}: {error} (--debug shows where)", BUG) from error


def _trace(ctx: click.Context | None) -> None:
    if ctx is not None and ctx.meta.get(_DEBUG):
        click.echo(traceback.format_exc(), err=True, nl=False)
