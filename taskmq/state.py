"""What is known of a task: its state, and TaskInfo, the record that users see."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from taskmq.queue import Limit


class TaskState(StrEnum):
    """Where a task is in its life (model.md §2). A terminal state never changes, except by an operator's replay."""

    SCHEDULED = "SCHEDULED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def terminal(self) -> bool:
        """Whether a task in this state has ended."""
        return self in _TERMINAL


_TERMINAL = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED})


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution that ended without success. Times are microseconds since the epoch."""

    attempt: int
    epoch: int
    ended_at: int
    outcome: str
    """``retry``, ``dead`` or ``lease expired``; behind a server also ``defer``"""
    error: str | None = None
    traceback: str | None = None
    worker: str | None = None
    started_at: int | None = None
    digest: str | None = None
    """Of the settle that ended it, where it may be repeated (transport/serving.py)."""


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a running task says it is: ``done`` of ``total`` (None: unknown), and a note of up to 256 characters."""

    done: float
    total: float | None = None
    note: str | None = None


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands in the store. Times are microseconds since the epoch; ``when()`` turns one into a datetime.

    ``attempt``    executions that were started
    ``epoch``      claims; the fencing token
    ``reason``     why it is dead: ``failed``, ``max_attempts``, ``poison``, ``handler_unknown``, or the handler's own
    ``result``     what the handler returned, decoded from JSON
    ``started_at`` start of the execution that runs, or that ended it; ``worker`` who ran it
    ``attempts``   the executions that failed, oldest first (long histories keep the first and the last ones)
    ``progress``   what the execution that runs, or that ended it, last said of itself
    ``parked``     a claim found its limit's key full: it stands aside until a slot is free
    """

    id: str
    queue: str
    handler: str
    state: TaskState
    priority: int
    seq: int
    attempt: int
    max_attempts: int
    epoch: int
    version: str = ""
    partition: str | None = None
    key: str | None = None
    limit: Limit | None = None
    parked: bool = False
    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    tags: list[str] = msgspec.field(default_factory=list)
    result: Any = None
    reason: str | None = None
    error: str | None = None
    traceback: str | None = None
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    created_at: int = 0
    available_at: int = 0
    dispatch_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    lease_until: int | None = None
    delete_at: int | None = None
    worker: str | None = None
    cancel_requested: bool = False
    replays: int = 0
    progress: Progress | None = None
    started: bool = True
    """Of one that runs: whether it is known to be started; a server's reservation is not."""

    @staticmethod
    def when(us: int | None) -> datetime | None:
        """A stored time as an aware UTC datetime."""
        return None if us is None else datetime.fromtimestamp(us / 1e6, tz=UTC)
