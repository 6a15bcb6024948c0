"""``taskmq queue``: operators' hands on one queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from taskmq.cli.completion import complete_queues
from taskmq.cli.target import Target, opened_store, target_options
from taskmq.control import QueueControl
from taskmq.names import check_name

_name = click.argument("name", metavar="NAME", shell_complete=complete_queues)


@click.group("queue")
def command() -> None:
    """Pause, resume, configure, purge and delete queues; "taskmq status" lists them."""


@contextmanager
def _opened(target: Target, name: str) -> Iterator[QueueControl]:
    with opened_store(target) as store:
        yield QueueControl(store, check_name("queue", name))


@command.command("pause")
@target_options
@_name
def pause(target: Target, name: str) -> None:
    """Let nothing more be claimed from a queue; running tasks go on."""
    with _opened(target, name) as queue:
        queue.pause()
    click.echo(f"queue {name} is paused")


@command.command("resume")
@target_options
@_name
def resume(target: Target, name: str) -> None:
    """Let a queue be claimed from again."""
    with _opened(target, name) as queue:
        queue.resume()
    click.echo(f"queue {name} is open")


@command.command("configure")
@target_options
@_name
@click.option("--weight", type=int, metavar="N", help="Share among queues of one priority, 1 to 1,000,000.")
@click.option("--order", metavar="ORDER", help="strict or aging.")
@click.option("--aging-step", metavar="DURATION", help="What a priority level is worth in an aging queue, e.g. 30s.")
@click.option("--max-running", type=int, metavar="N", help="Tasks in workers' hands at once; 0 lifts the limit.")
@click.option("--max-queued", type=int, metavar="N", help="Tasks that may wait; more are refused. 0 lifts the limit.")
@click.option("--rate", metavar="RATE", help="Starts in a time: 100/s, 5/m, 20/h; 0 lifts it.")
@click.option("--on-dead", metavar="WHAT", help="What a dead task does to its ordered partition: continue or hold.")
@click.option("--lease", metavar="DURATION", help="Lease of a delivery, e.g. 30s.")
def configure(target: Target, name: str, **options: Any) -> None:
    """Change settings of a queue. They stay, whatever an app's configuration says later."""
    changes = {option: value for option, value in options.items() if value is not None}
    for limit in ("max_running", "max_queued", "rate"):
        if changes.get(limit) in (0, "0"):
            changes[limit] = None
    if not changes:
        raise click.UsageError("nothing to change: give at least one setting")
    with _opened(target, name) as queue:
        config = queue.configure(**changes)
    click.echo(f"queue {name}: " + ", ".join(f"{setting}={getattr(config, setting)}" for setting in changes))


@command.command("purge")
@target_options
@_name
@click.confirmation_option("--yes", prompt="Cancel everything that waits in this queue?")
def purge(target: Target, name: str) -> None:
    """Cancel everything that waits in a queue; running tasks go on."""
    with _opened(target, name) as queue:
        count = queue.purge()
    click.echo(f"cancelled {count} tasks of queue {name}")


@command.command("delete")
@target_options
@_name
@click.confirmation_option("--yes", prompt="Forget this queue, its history and its keys?")
def delete(target: Target, name: str) -> None:
    """Forget a queue that has no unfinished tasks."""
    with _opened(target, name) as queue:
        queue.delete()
    click.echo(f"queue {name} is deleted")
