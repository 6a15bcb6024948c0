"""``taskmq dead``: the dead letters, tasks that failed for good."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

import click

from taskmq.cli.completion import complete_handlers, complete_queues
from taskmq.cli.exits import FAILED, OK, CliError
from taskmq.cli.output import echo_json, json_option
from taskmq.cli.target import Target, opened_store, target_options
from taskmq.cli.views import (
    check_ids,
    echo_dead,
    echo_outcomes,
    echo_task,
    purge_outcomes,
    replay_outcomes,
    task_json,
)
from taskmq.control import TaskQuery, task_query
from taskmq.handle import find_task
from taskmq.state import TaskState
from taskmq.transport.base import Store

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group("dead")
def command() -> None:
    """List, show, replay and purge dead letters: tasks that failed for good."""


def _filters(function: _Command) -> _Command:
    function = click.option(
        "--handler", metavar="NAME", shell_complete=complete_handlers, help="Only of this handler."
    )(function)
    return click.option("--queue", metavar="NAME", shell_complete=complete_queues, help="Only of this queue.")(function)


def _selection(function: _Command) -> _Command:
    """Either ids, or ``--all`` with filters."""
    function = click.option("--all", "everything", is_flag=True, help="All that --queue and --handler leave.")(function)
    return click.argument("task_ids", metavar="[ID...]", nargs=-1, callback=check_ids)(_filters(function))


def _check_selection(task_ids: tuple[str, ...], everything: bool, queue: str | None, handler: str | None) -> None:
    if bool(task_ids) == everything:
        raise click.UsageError("name the dead letters by their ids, or say --all")
    if task_ids and (queue or handler):
        raise click.UsageError("--queue and --handler narrow --all; they do not go with ids")


@command.command("list")
@target_options
@_filters
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many."
)
@json_option
def list_dead(
    target: Target,
    queue: str | None,
    handler: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List dead letters, the most recently published first."""
    with opened_store(target) as store:
        echo_dead(islice(_find(store, queue, handler), limit), as_json)


@command.command("show")
@target_options
@click.argument("task_id", metavar="ID")
@json_option
def show(target: Target, task_id: str, as_json: bool) -> None:
    """Show everything about a dead letter, with the error and traceback of each attempt."""
    with opened_store(target) as store:
        task = find_task(store, task_id)
    if task.state is not TaskState.FAILED:
        raise CliError(f"task {task_id} is no dead letter: {task.state} (see: taskmq task show {task_id})", FAILED)
    if as_json:
        echo_json(task_json(task))
    else:
        echo_task(task)


@command.command("replay")
@target_options
@_selection
@click.option("--to", metavar="QUEUE", help="Into this queue instead of their own.")
@json_option
def replay(
    target: Target,
    task_ids: tuple[str, ...],
    everything: bool,
    queue: str | None,
    handler: str | None,
    to: str | None,
    as_json: bool,
) -> int:
    """Queue dead letters again, each with a new budget of attempts."""
    _check_selection(task_ids, everything, queue, handler)
    with opened_store(target) as store:
        if task_ids:
            return echo_outcomes(replay_outcomes(store, task_ids, to), as_json)
        _echo_count("queued again", "replayed", _find(store, queue, handler).retry_all(to), as_json)
    return OK


@command.command("purge")
@target_options
@_selection
@click.option("--yes", is_flag=True, help="Do not ask before --all.")
@json_option
def purge(
    target: Target,
    task_ids: tuple[str, ...],
    everything: bool,
    queue: str | None,
    handler: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete dead letters for good, with their idempotency keys."""
    _check_selection(task_ids, everything, queue, handler)
    with opened_store(target) as store:
        if task_ids:
            return echo_outcomes(purge_outcomes(store, task_ids), as_json)
        if not yes:
            click.confirm("Delete all of these dead letters for good?", abort=True, err=True)
        _echo_count("deleted", "purged", _find(store, queue, handler).purge_all(), as_json)
    return OK


def _find(store: Store, queue: str | None, handler: str | None) -> TaskQuery:
    return task_query(store, queue=queue, handler=handler, state=TaskState.FAILED)


def _echo_count(words: str, name: str, count: int, as_json: bool) -> None:
    if as_json:
        echo_json({name: count})
    else:
        click.echo(f"{words}: {count:,}")
