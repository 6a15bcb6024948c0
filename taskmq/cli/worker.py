"""``taskmq worker``: run an app's tasks in this process."""

from __future__ import annotations

import logging
from typing import Any

import click

from taskmq.cli.exits import USAGE, CliError
from taskmq.cli.target import app_option, find_app, load_app

_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger("taskmq.cli")


def _prefetch(ctx: click.Context, param: click.Parameter, text: str) -> int | str:
    """A number, or the word auto; the worker knows the range."""
    if text != "auto" and not text.isdigit():
        raise click.BadParameter(f"{text!r} is neither auto nor a number", ctx, param)
    return text if text == "auto" else int(text)


@click.command("worker")
@click.argument("module_app", metavar="[MODULE:NAME]", required=False)
@app_option
@click.option("--queues", metavar="A,B=3", help="Only these; =3 seeds a weight. [the queues of all handlers]")
@click.option("--concurrency", metavar="N", type=int, help="Tasks at once. [a few more than CPUs; 100 for asyncio]")
@click.option(
    "--pool", metavar="KIND", default="threads", show_default=True, help="threads, asyncio, processes, or solo: one."
)
@click.option("--max-tasks-per-child", metavar="N", type=int, help="Replace a process of the pool after so many tasks.")
@click.option("--max-memory-per-child", metavar="MIB", type=int, help="Replace it when it has so much in memory.")
@click.option(
    "--prefetch", metavar="N", callback=_prefetch, default="auto", show_default=True, help="Held ready beyond those."
)
@click.option("--grace", metavar="DURATION", help="For running tasks, when told to stop: 25, 2m. [the app's]")
@click.option("--apply-config", is_flag=True, help="Set the queues as the app has them, over what operators set.")
@click.option("--name", metavar="NAME", help="Its id among the workers. [made of host and process]")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
def command(module_app: str | None, app: str | None, log_level: str, **options: Any) -> int:
    """Run an app's tasks until told to stop.

    SIGTERM or Ctrl-C: what has not been started goes back to the queue at once, what runs has --grace to end; then the
    exit code is 0. A second one: now.
    """
    if module_app and app:
        raise click.UsageError("the app is given twice, as the argument and as --app")
    from taskmq.worker.logs import log_to_stderr  # not at the top: help needs no worker

    log_to_stderr(log_level.upper())
    spec = find_app(module_app or app)
    loaded = load_app(spec)
    if not loaded.handlers and not options["queues"]:
        raise CliError(
            f"the app {module_app or app or ''} has no handlers: is the module imported that has them?", USAGE
        )
    _log.info("handlers: %s", ", ".join(sorted(loaded.handlers)))
    with loaded:
        return loaded.worker(**options, import_as=spec).run()
