"""``taskmq partition``: operators' hands on one partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from taskmq.cli.completion import complete_queues
from taskmq.cli.exits import FAILED, NOT_FOUND, CliError
from taskmq.cli.output import echo_json, echo_table, iso, json_option, short_time
from taskmq.cli.target import Target, opened_store, target_options
from taskmq.control import PartitionControl
from taskmq.names import check_code, check_name
from taskmq.transport.base import PartitionInfo

_queue = click.argument("queue", metavar="QUEUE", shell_complete=complete_queues)
_code = click.argument("code", metavar="CODE")
_COLUMNS = ("partition", "waiting", "running", "weight", "state", "worker")


@click.group("partition")
def command() -> None:
    """Look at partitions; pause, resume, release, skip and purge them. The CODE of an ordered one starts with "!"."""


@contextmanager
def _opened(target: Target, queue: str, code: str) -> Iterator[PartitionControl]:
    with opened_store(target) as store:
        yield PartitionControl(store, check_name("queue", queue), check_code(code))


@command.command("list")
@target_options
@_queue
@click.option("--stopped", is_flag=True, help="Only those that are paused, blocked or held by a dead task.")
@json_option
def list_partitions(target: Target, queue: str, stopped: bool, as_json: bool) -> None:
    """List the partitions of a queue that have something in line, running, blocked or stopped."""
    with opened_store(target) as store:
        partitions = store.partitions(check_name("queue", queue), stopped=stopped)
    _echo(partitions, as_json)


@command.command("info")
@target_options
@_queue
@_code
@json_option
def info(target: Target, queue: str, code: str, as_json: bool) -> None:
    """Show one partition."""
    with _opened(target, queue, code) as partition:
        found = partition.info()
    if found is None:
        raise CliError(f"queue {queue} has nothing of partition {code}: it is empty", NOT_FOUND)
    _echo([found], as_json)


@command.command("pause")
@target_options
@_queue
@_code
def pause(target: Target, queue: str, code: str) -> None:
    """Let nothing more of a partition be claimed, now or later; running tasks go on."""
    with _opened(target, queue, code) as partition:
        partition.pause()
    click.echo(f"partition {code} of queue {queue} is paused")


@command.command("resume")
@target_options
@_queue
@_code
def resume(target: Target, queue: str, code: str) -> None:
    """Let a paused partition be claimed from again."""
    with _opened(target, queue, code) as partition:
        partition.resume()
    click.echo(f"partition {code} of queue {queue} is open")


@command.command("release")
@target_options
@_queue
@_code
def release(target: Target, queue: str, code: str) -> None:
    """Try the dead head of a held partition again, in its place and with a new budget."""
    with _opened(target, queue, code) as partition:
        if not partition.release():
            raise CliError(f"partition {code} of queue {queue} is not held", FAILED)
    click.echo(f"partition {code} of queue {queue} is released")


@command.command("skip")
@target_options
@_queue
@_code
def skip(target: Target, queue: str, code: str) -> None:
    """Go on without the head: a held one stays dead, a waiting one becomes dead."""
    with _opened(target, queue, code) as partition:
        if not partition.skip_head():
            raise CliError(f"partition {code} of queue {queue} has no head that could be skipped", FAILED)
    click.echo(f"partition {code} of queue {queue} goes on without its head")


@command.command("purge")
@target_options
@_queue
@_code
@click.confirmation_option("--yes", prompt="Cancel everything that waits in this partition?")
def purge(target: Target, queue: str, code: str) -> None:
    """Cancel everything that waits in a partition, and lift a hold; running tasks go on."""
    with _opened(target, queue, code) as partition:
        count = partition.purge()
    click.echo(f"cancelled {count} tasks of partition {code}")


def _echo(partitions: list[PartitionInfo], as_json: bool) -> None:
    if as_json:
        for partition in partitions:
            echo_json({**asdict(partition), "blocked_until": iso(partition.blocked_until)})
        return
    echo_table(_COLUMNS, [_row(partition) for partition in partitions], numbers=("waiting", "running", "weight"))


def _row(partition: PartitionInfo) -> tuple[str, ...]:
    counts: list[Any] = [partition.waiting, partition.running, partition.weight]
    return (partition.code, *map(str, counts), _state(partition), partition.worker or "")


def _state(partition: PartitionInfo) -> str:
    if partition.paused:
        return "paused"
    if partition.held_by is not None:
        return f"held by {partition.held_by}"
    if partition.blocked_until is not None:
        return f"blocked until {short_time(partition.blocked_until)}"
    if partition.max_running is not None and partition.running >= partition.max_running:
        return f"full (max_running={partition.max_running})"
    return "open"
