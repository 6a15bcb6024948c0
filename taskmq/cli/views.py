"""How a task, a queue and a worker are shown, and what the commands that name tasks share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
import msgspec

from taskmq.cli.exits import FAILED, NOT_FOUND, OK
from taskmq.cli.output import duration, echo_json, echo_table, iso, short_time
from taskmq.names import check_id, check_name
from taskmq.state import Attempt, Progress, TaskInfo, TaskState
from taskmq.transport.base import Inspect, QueueStats, WorkerInfo

_TIMES = ("created_at", "available_at", "dispatch_at", "started_at", "finished_at", "lease_until", "delete_at")
_LIST = ("id", "state", "queue", "handler", "priority", "partition", "attempt", "created")
_DEAD = ("id", "queue", "handler", "partition", "attempt", "died", "reason", "error")


_GONE = "not found: never published, or its retention is over"


def check_ids(ctx: click.Context, param: click.Parameter, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Callback of every argument that takes ids: what is no id is refused before anything is done."""
    return tuple(check_id(task_id) for task_id in ids)


def task_json(task: TaskInfo) -> dict[str, Any]:
    """Everything about a task, as programs read it."""
    fields: dict[str, Any] = msgspec.to_builtins(task)
    for name in _TIMES:
        fields[name] = iso(fields[name])
    for attempt in fields["attempts"]:
        attempt["ended_at"] = iso(attempt["ended_at"])
    return fields


def queue_json(queue: QueueStats) -> dict[str, Any]:
    """A queue's counts and settings, as programs read them."""
    age = queue.oldest_ready_age
    return {
        "name": queue.name,
        "paused": queue.config.paused,
        "order": queue.config.order,
        "weight": queue.config.weight,
        "ready": queue.ready,
        "scheduled": queue.scheduled,
        "running": queue.running,
        "retrying": queue.retrying,
        "dead": queue.dead,
        "partitions": queue.partitions,
        "oldest_ready_seconds": None if age is None else age / 1e6,
        "by_priority": {str(priority): count for priority, count in queue.by_priority.items()},
        "by_handler": dict(queue.by_handler),
        "max_running": queue.config.max_running,
        "max_queued": queue.config.max_queued,
        "rate": msgspec.to_builtins(queue.config.rate),
        "next_start_at": iso(queue.next_start_at),
    }


def worker_json(worker: WorkerInfo) -> dict[str, Any]:
    """A worker's row, as programs read it."""
    fields: dict[str, Any] = msgspec.to_builtins(worker)
    return fields | {"started_at": iso(worker.started_at), "seen_at": iso(worker.seen_at)}


def echo_tasks(tasks: Iterable[TaskInfo], as_json: bool) -> None:
    """List tasks, one a line."""
    if as_json:
        for task in tasks:
            echo_json(task_json(task))
        return
    rows = (
        (
            task.id,
            f"{task.state}{' (cancel requested)' if task.cancel_requested else ''}",
            task.queue,
            task.handler,
            str(task.priority),
            task.partition or "",
            f"{task.attempt}/{task.max_attempts}",
            short_time(task.created_at),
        )
        for task in tasks
    )
    echo_table(_LIST, rows, numbers=("priority", "attempt"))


def echo_dead(tasks: Iterable[TaskInfo], as_json: bool) -> None:
    """List dead letters, one a line, with why they died."""
    if as_json:
        echo_tasks(tasks, as_json)
        return
    rows = (
        (
            task.id,
            task.queue,
            task.handler,
            task.partition or "",
            f"{task.attempt}/{task.max_attempts}",
            short_time(task.finished_at),
            task.reason or "",
            task.error or "",
        )
        for task in tasks
    )
    echo_table(_DEAD, rows, numbers=("attempt",))


def echo_task(task: TaskInfo) -> None:
    """Everything about one task, for people: what is empty is left out."""
    fields = task_json(task)
    traceback, attempts = fields.pop("traceback"), fields.pop("attempts")
    fields["attempt"] = f"{fields['attempt']} of {fields.pop('max_attempts')}"
    fields["limit"] = None if task.limit is None else f"{task.limit.key}: {task.limit.n} at once"
    fields["progress"] = None if task.progress is None else progress_text(task.progress)
    width = max(map(len, fields))
    for name, value in fields.items():
        if value is None or value is False or value in ("", [], {}):
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        click.echo(f"{name:<{width}}  {text}")
    for number, attempt in enumerate(attempts):
        _echo_attempt(task.attempts[number], attempt["ended_at"])
    if traceback and (not task.attempts or task.attempts[-1].traceback != traceback):
        click.echo(f"\n{traceback.rstrip()}")


def progress_text(progress: Progress) -> str:
    """How far a task says it is, for people: ``30 of 120 (25%): reading``."""
    text = f"{progress.done:g}"
    if progress.total is not None:
        text += f" of {progress.total:g}"
        if progress.total > 0:
            text += f" ({progress.done / progress.total:.0%})"
    return text if progress.note is None else f"{text}: {progress.note}"


def _echo_attempt(attempt: Attempt, ended_at: str) -> None:
    worker = f" on {attempt.worker}" if attempt.worker else ""
    click.echo(f"\nattempt {attempt.attempt} ended {ended_at}{worker}: {attempt.outcome}")
    for text in (attempt.traceback or attempt.error or "").rstrip().splitlines():
        click.echo(f"  {text}")


def queue_rows(queues: Sequence[QueueStats]) -> Iterator[tuple[str, ...]]:
    """A line of the status table for each queue."""
    for queue in queues:
        counts = (queue.ready, queue.scheduled, queue.running, queue.retrying, queue.dead)
        yield (
            queue.name,
            *map(str, counts),
            duration(queue.oldest_ready_age),
            str(queue.config.weight),
            queue.config.order,
            "paused" if queue.config.paused else "open",
        )


def echo_outcomes(outcomes: Iterable[tuple[str, int, str]], as_json: bool) -> int:
    """Print what became of each named task, and return the worst exit code.

    An outcome is the task's id, its exit code and a few words. What went wrong goes to stderr, unless as JSON.
    """
    worst = OK
    for task_id, code, words in outcomes:
        worst = max(worst, code)
        if as_json:
            echo_json({"id": task_id, "ok": code == OK, "outcome": words})
        else:
            click.echo(f"{task_id} {words}", err=code != OK)
    return worst


def cancel_outcome(task_id: str, state: TaskState | None) -> tuple[str, int, str]:
    """What a cancel did, given the state the task is in now."""
    if state is None:
        return task_id, NOT_FOUND, _GONE
    if state is TaskState.RUNNING:
        return task_id, OK, "is running: its worker is asked to stop it"
    if state is TaskState.CANCELLED:
        return task_id, OK, "cancelled"
    return task_id, FAILED, f"had already ended: {state}"


def purge_outcomes(store: Inspect, task_ids: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Delete dead letters, nothing else, and tell what became of each."""
    found = store.get(task_ids)
    store.purge([task.id for task in found if task is not None and task.state is TaskState.FAILED])
    for task_id, task in zip(task_ids, found, strict=True):
        if task is None:
            yield task_id, NOT_FOUND, _GONE
        elif task.state is not TaskState.FAILED:
            yield task_id, FAILED, f"is no dead letter: {task.state}; it was left alone"
        else:
            yield task_id, OK, "deleted"


def replay_outcomes(store: Inspect, task_ids: Sequence[str], queue: str | None) -> Iterator[tuple[str, int, str]]:
    """Queue dead letters again, and tell what became of each."""
    replayed = store.replay(task_ids, None if queue is None else check_name("queue", queue))
    for task_id, done, task in zip(task_ids, replayed, store.get(task_ids), strict=True):
        if done:
            yield task_id, OK, f"queued again in {task.queue}" if task else "queued again"
        elif task is None:
            yield task_id, NOT_FOUND, _GONE
        else:
            yield task_id, FAILED, f"is no dead letter: {task.state}; only a FAILED task is queued again"
