"""``taskmq status``: queues and workers at a glance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from taskmq.cli.output import duration, echo_json, echo_table, json_option
from taskmq.cli.target import Target, opened_store, target_options
from taskmq.cli.views import queue_json, queue_rows, worker_json
from taskmq.names import MAX_PRIORITY

if TYPE_CHECKING:
    from taskmq.transport.base import QueueStats, Store, WorkerInfo

_COUNTS = ("ready", "scheduled", "running", "retrying", "dead")
_BANDS = range(MAX_PRIORITY, -1, -1)
_WORKER = ("worker", "host", "pid", "pool", "slots", "running", "held", "seen", "queues")


@click.command("status")
@target_options
@click.option("--by-priority", is_flag=True, help="Also the ready tasks of each priority, most urgent first.")
@click.option("--watch", is_flag=True, help="Show it anew until interrupted.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1, max=86400),
    default=2.0,
    show_default=True,
    help="How often, with --watch.",
)
@json_option
def command(target: Target, by_priority: bool, watch: bool, interval: float, as_json: bool) -> None:
    """Show queues and workers.

    \b
    ready      may start now            retrying  waits for its next attempt
    scheduled  waits for its time       dead      failed for good: see taskmq dead
    """  # noqa: D301 - click reads the \b
    with opened_store(target) as store:
        _show(store, by_priority, as_json)
        while watch:
            time.sleep(interval)
            if not as_json:
                click.clear()
            _show(store, by_priority, as_json)


def _show(store: Store, by_priority: bool, as_json: bool) -> None:
    queues, workers = store.stats(), store.workers()
    if as_json:
        echo_json({"queues": [queue_json(q) for q in queues], "workers": [worker_json(w) for w in workers]})
        return
    if by_priority:
        _echo_by_priority(queues)
    else:
        columns = ("queue", *_COUNTS, "oldest", "weight", "order", "state")
        echo_table(columns, queue_rows(queues), numbers=(*_COUNTS, "oldest", "weight"))
    click.echo()
    echo_table(_WORKER, map(_worker_row, workers), numbers=("pid", "slots", "running", "held"))


def _worker_row(worker: WorkerInfo) -> tuple[str, ...]:
    counts = (worker.pid, worker.pool, worker.concurrency, worker.running, worker.held)
    seen = duration(max(0, time.time_ns() // 1000 - worker.seen_at))
    return (worker.id, worker.host, *map(str, counts), f"{seen} ago", ",".join(worker.queues))


def _echo_by_priority(queues: list[QueueStats]) -> None:
    bands = [f"p{priority}" for priority in _BANDS]
    rows = (
        (queue.name, str(queue.ready), *(str(queue.by_priority.get(priority, 0)) for priority in _BANDS))
        for queue in queues
    )
    echo_table(("queue", "ready", *bands), rows, numbers=("ready", *bands))
