"""``taskmq task``: look at single tasks, cancel and retry them."""

from __future__ import annotations

from itertools import islice

import click

from taskmq.cli.completion import complete_handlers, complete_queues
from taskmq.cli.output import echo_json, json_option
from taskmq.cli.target import Target, opened_store, target_options
from taskmq.cli.views import (
    cancel_outcome,
    check_ids,
    echo_outcomes,
    echo_task,
    echo_tasks,
    replay_outcomes,
    task_json,
)
from taskmq.control import task_query
from taskmq.handle import find_task
from taskmq.state import TaskState


@click.group("task")
def command() -> None:
    """List, show, cancel and retry tasks."""


@command.command("list")
@target_options
@click.option("--queue", metavar="NAME", shell_complete=complete_queues, help="Only of this queue.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(TaskState, case_sensitive=False), help="Repeatable."
)
@click.option("--handler", metavar="NAME", shell_complete=complete_handlers, help="Only of this handler.")
@click.option("--partition", metavar="CODE", help='Only of this partition; an ordered one starts with "!".')
@click.option("--tag", metavar="TAG", help="Only with this tag.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many."
)
@json_option
def list_tasks(
    target: Target,
    queue: str | None,
    states: tuple[TaskState, ...],
    handler: str | None,
    partition: str | None,
    tag: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List tasks, newest first. Every given condition must hold."""
    with opened_store(target) as store:
        found = task_query(store, queue=queue, state=states, handler=handler, partition=partition, tag=tag)
        echo_tasks(islice(found, limit), as_json)


@command.command("show")
@target_options
@click.argument("task_id", metavar="ID")
@json_option
def show(target: Target, task_id: str, as_json: bool) -> None:
    """Show everything about a task: times, arguments, result, and its attempts with their errors."""
    with opened_store(target) as store:
        task = find_task(store, task_id)
    if as_json:
        echo_json(task_json(task))
    else:
        echo_task(task)


@command.command("cancel")
@target_options
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, callback=check_ids)
@json_option
def cancel(target: Target, task_ids: tuple[str, ...], as_json: bool) -> int:
    """Cancel tasks: what waits at once, what runs is asked to stop."""
    with opened_store(target) as store:
        states = store.cancel(task_ids)
    return echo_outcomes(map(cancel_outcome, task_ids, states), as_json)


@command.command("retry")
@target_options
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, callback=check_ids)
@json_option
def retry(target: Target, task_ids: tuple[str, ...], as_json: bool) -> int:
    """Queue failed tasks again, each with a new budget of attempts."""
    with opened_store(target) as store:
        return echo_outcomes(replay_outcomes(store, task_ids, None), as_json)
