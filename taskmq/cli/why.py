"""``taskmq why``: what holds a task back."""

from __future__ import annotations

import click

from taskmq.cli.output import echo_json, json_option
from taskmq.cli.target import Target, opened_store, target_options
from taskmq.handle import find_task
from taskmq.why import why


@click.command("why")
@target_options
@click.argument("task_id", metavar="ID")
@json_option
def command(target: Target, task_id: str, as_json: bool) -> None:
    """Say why a task does not run now: what it waits for, who has it, or how it ended."""
    with opened_store(target) as store:
        task = find_task(store, task_id)
        text = why(store, task)
    if as_json:
        echo_json({"id": task.id, "state": task.state, "why": text})
    else:
        click.echo(text)
