"""``taskmq dev``: a worker that is started anew whenever the code changes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import click

from taskmq.cli.exits import OK
from taskmq.cli.target import app_option, find_app
from taskmq.durations import seconds
from taskmq.errors import ConfigError

TICK = 100
"""Milliseconds between two looks whether the worker has ended by itself."""


@click.command("dev", context_settings={"ignore_unknown_options": True})
@click.argument("module_app", metavar="[MODULE:NAME]", required=False)
@app_option
@click.option(
    "--watch",
    "paths",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True),
    help="A folder or file whose .py files count; repeatable. [the working directory]",
)
@click.option("--grace", metavar="DURATION", default="5", show_default=True, help="For running tasks, at each restart.")
@click.argument("worker_options", metavar="[WORKER OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def command(
    module_app: str | None, app: str | None, paths: tuple[str, ...], grace: str, worker_options: tuple[str, ...]
) -> int:
    """Run an app's tasks, and start the worker anew whenever a .py file changes.

    Code that cannot be imported is shown, and the next change is waited for. Ctrl-C ends it: running tasks have --grace
    to end; a second one ends now. Options that dev does not know go to the worker (see: taskmq worker --help).
    """
    if module_app is not None and module_app.startswith("-"):  # the worker's options, without an app before them
        worker_options = (module_app, *worker_options)
        module_app = None
    if module_app and app:
        raise click.UsageError("the app is given twice, as the argument and as --app")
    found = find_app(module_app or app)
    longest = seconds("--grace", grace, 0.0, 86400.0)
    watch = watcher()
    from taskmq.cli.reload import Reloader

    worker = ["worker", found, "--debug", "--grace", grace, *worker_options]
    Reloader(worker, longest).run(lambda stop: changes(watch, paths or ["."], stop))
    return OK


def watcher() -> Any:
    """The library that watches files; raises ConfigError with the way out where it is not installed."""
    try:
        return importlib.import_module("watchfiles")
    except ModuleNotFoundError as error:
        raise ConfigError("taskmq dev needs watchfiles, which is not installed: pip install taskmq[reload]") from error


def changes(watchfiles: Any, paths: Iterable[str], stop: Event) -> Iterator[list[str]]:
    """The names of .py files that have changed, as often as some have; and, several times a second, an empty list."""
    seen = watchfiles.watch(
        *paths,
        watch_filter=watchfiles.PythonFilter(),
        stop_event=stop,
        rust_timeout=TICK,
        yield_on_timeout=True,
        raise_interrupt=False,
    )
    for batch in seen:
        yield sorted({Path(path).name for _, path in batch})
