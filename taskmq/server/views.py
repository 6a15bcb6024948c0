"""Tasks and queues as the API shows them. A field at its default is left out, except the first ones of a task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from taskmq.server.database.queues import QueueRecord
from taskmq.server.submissions import EXTRAS
from taskmq.state import Attempt, TaskInfo, TaskState
from taskmq.transport.base import PartitionInfo, QueueStats
from taskmq.wire.times import format_time

MAX_ATTEMPTS = 32
"""Of a task's history."""
MAX_TYPE, MAX_MESSAGE, MAX_TRACEBACK = 128, 2048, 8192
_ORDERED_EXTRAS = ("expires_at", "deadline", "timeout_ms", "retry")
_MORE_EXTRAS = ("partition_weight", "resource_max_running", "retention_ms", "traceparent")
_MAX_BLAMED = 10


class Lookup(msgspec.Struct):
    """What a task's row does not say: names of queues and workers, and when running ones were asked to stop."""

    queues: Mapping[str, QueueRecord]
    workers: Mapping[str, str]
    cancels: Mapping[str, tuple[int, str | None]]
    """When and why."""


def extras_of(info: TaskInfo) -> dict[str, Any]:
    """What the API keeps of a task in its envelope."""
    try:
        extras: dict[str, Any] = msgspec.json.decode(info.headers.get(EXTRAS, "{}"))
    except msgspec.DecodeError:
        return {}
    return extras


def reserved(info: TaskInfo) -> bool:
    """Whether a worker has it that has not started it."""
    return info.state is TaskState.RUNNING and not info.started


def deferred(info: TaskInfo) -> bool:
    """Whether its handler asked for the delay that it waits for; the store calls that RETRYING, too."""
    last = info.attempts[-1] if info.attempts else None
    return info.state is TaskState.RETRYING and last is not None and (last.epoch, last.outcome) == (info.epoch, "defer")


def state_of(info: TaskInfo) -> str:
    """Its state as the API names it: what is reserved is still QUEUED, what was deferred SCHEDULED."""
    if reserved(info):
        return TaskState.QUEUED.value
    return TaskState.SCHEDULED.value if deferred(info) else info.state.value


def stored_states(wanted: Collection[TaskState]) -> list[TaskState]:
    """As what the store may have tasks of these states; ``state_of`` tells which of those it finds are meant."""
    more = {TaskState.QUEUED: TaskState.RUNNING, TaskState.SCHEDULED: TaskState.RETRYING}
    return list(dict.fromkeys([*wanted, *(more[state] for state in wanted if state in more)]))


def task_object(info: TaskInfo, lookup: Lookup, *, full: bool = True) -> dict[str, Any]:
    """A task; not ``full``: without payload, result, traceback and history."""
    extras = extras_of(info)
    queue = lookup.queues.get(info.queue)
    shown: dict[str, Any] = {
        "task_id": info.id,
        "queue_id": info.queue,
        "queue": queue.name if queue is not None else info.queue,
        "handler": info.handler,
        "handler_version": info.version or "v1",
        "payload_version": extras.get("payload_version", "v1"),
        "state": state_of(info),
        "attempt": info.attempt,
        "epoch": info.epoch,
        "max_attempts": info.max_attempts,
        "created_at": format_time(info.created_at),
        "available_at": format_time(info.available_at),
    }
    if info.priority:
        shown["priority"] = info.priority
    if queue is not None and queue.settings.order == "aging":
        shown["dispatch_at"] = format_time(info.dispatch_at)
    if full and info.args and info.args[0] is not None:
        shown["payload"] = info.args[0]
    shown |= {name: extras[name] for name in _ORDERED_EXTRAS if name in extras}
    if info.partition is not None:
        shown["partition"] = info.partition
    if info.limit is not None:
        shown["resource_key"] = info.limit.key
    shown |= {name: extras[name] for name in _MORE_EXTRAS if name in extras}
    shown |= _progress_of(info, lookup)
    if full:
        shown |= _history_of(info, lookup)
    elif _has_error(info):
        shown["error"] = error_object(info.error or "", None)
    return shown


def _progress_of(info: TaskInfo, lookup: Lookup) -> dict[str, Any]:
    """Who has it, and how it ended."""
    shown: dict[str, Any] = {}
    worker = None if info.worker is None else lookup.workers.get(info.worker, info.worker)
    if reserved(info):
        return {"reserved_by": worker}
    running = info.state is TaskState.RUNNING
    if running or info.state.terminal:
        _times(shown, started_at=info.started_at, lease_until=info.lease_until)
        if worker is not None and info.started_at is not None:
            shown["worker_id"] = worker
    asked_at, why = lookup.cancels.get(info.id, (info.started_at, None))
    if (running and info.cancel_requested) or (info.state is TaskState.CANCELLED and info.id in lookup.cancels):
        _times(shown, cancel_requested_at=asked_at)
    _times(shown, finished_at=info.finished_at)
    if info.state is TaskState.FAILED:
        shown["reason"] = reason_of(info)
    elif why is not None and info.state is TaskState.CANCELLED:
        shown["reason"] = why
    if info.replays:
        shown["replay_count"] = info.replays
    return shown


def _history_of(info: TaskInfo, lookup: Lookup) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if info.state is TaskState.SUCCEEDED:
        shown |= {} if info.result is None else {"result": info.result}
    elif _has_error(info):
        shown["error"] = error_object(info.error or "", info.traceback)
    if info.attempts:
        shown["attempts_history"] = [_attempt(attempt, lookup) for attempt in info.attempts[-MAX_ATTEMPTS:]]
    return shown


def _has_error(info: TaskInfo) -> bool:
    return info.error is not None and info.state not in (TaskState.SUCCEEDED, TaskState.CANCELLED)


def reason_of(info: TaskInfo) -> str:
    """Why it failed, in the words of the protocol."""
    expired = [attempt for attempt in info.attempts if attempt.outcome == "lease expired"]
    if info.reason == "max_attempts" and info.attempts and info.attempts[-1].outcome == "lease expired":
        return "lease_expired"
    if info.reason == "poison" and len(expired) < _MAX_BLAMED:
        return "undeliverable"
    return info.reason or "failed"


def _attempt(attempt: Attempt, lookup: Lookup) -> dict[str, Any]:
    shown: dict[str, Any] = {"epoch": attempt.epoch, "attempt": attempt.attempt}
    if attempt.worker is not None:
        shown["worker_id"] = lookup.workers.get(attempt.worker, attempt.worker)
    _times(shown, started_at=attempt.started_at, ended_at=attempt.ended_at)
    shown["outcome"] = attempt.outcome.replace(" ", "_")
    if attempt.error is not None:
        shown["error"] = error_object(attempt.error, attempt.traceback)
    return shown


KEPT_COLON = ":\u00a0"
"""How a colon and a space inside of an error's type are stored: the first ones end it."""


def error_object(text: str, traceback: str | None) -> dict[str, Any]:
    """A stored error, ``type: message``, as it was reported."""
    kind, colon, message = text.partition(": ")
    kind = kind.replace(KEPT_COLON, ": ")
    shown: dict[str, Any] = {"type": kind, "message": message} if colon else {"type": "Error", "message": text}
    if traceback:
        shown["traceback"] = traceback
    if _is_cut(kind, MAX_TYPE) or _is_cut(shown["message"], MAX_MESSAGE) or (traceback or "").startswith(CUT):
        shown["truncated"] = True
    return shown


CUT = "…"


def cut(text: str, most: int) -> str:
    """Text of at most so many bytes, cut between characters and marked."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[: most - len(CUT.encode())].decode("utf-8", "ignore") + CUT


def _is_cut(text: str, most: int) -> bool:
    """Whether ``cut`` has made it: a character of up to four bytes may have been in the way."""
    return text.endswith(CUT) and len(text.encode()) > most - 4


def cut_front(text: str, most: int) -> str:
    """The same, but the end stays: of a traceback it says most."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else CUT + data[-(most - len(CUT.encode())) :].decode("utf-8", "ignore")


def _times(shown: dict[str, Any], **times: int | None) -> None:
    shown |= {name: format_time(moment) for name, moment in times.items() if moment is not None}


def queue_object(record: QueueRecord, stats: QueueStats | None = None) -> dict[str, Any]:
    """A queue, with its counts if they were looked up."""
    settings: dict[str, Any] = msgspec.to_builtins(record.settings)
    shown = {"queue_id": record.queue_id, "name": record.name, **settings}
    shown |= {"created_at": format_time(record.created_at), "revision": record.revision}
    if stats is not None:
        counts = {"scheduled": stats.scheduled, "queued": stats.ready}
        shown["counts"] = counts | {"running": stats.running, "retrying": stats.retrying}
        shown["by_priority"] = {str(p): n for p, n in sorted(stats.by_priority.items(), reverse=True) if n}
        age = stats.oldest_ready_age
        shown["oldest_ready_ms"] = None if age is None else max(0, age) // 1000
    return shown


def partition_object(info: PartitionInfo, workers: Mapping[str, str]) -> dict[str, Any]:
    """A partition."""
    return {
        "partition": info.code,
        "ordered": info.ordered,
        "weight": info.weight,
        "waiting": info.waiting,
        "holder": None if info.worker is None else workers.get(info.worker, info.worker),
        "blocked_until": None if info.blocked_until is None else format_time(info.blocked_until),
        "paused": info.paused,
        "held": info.held_by is not None,
    }
