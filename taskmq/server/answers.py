"""What routes answer, as types: for the OpenAPI document. Clients ignore fields that they do not know."""

from __future__ import annotations

from typing import Any

import msgspec

from taskmq.server.bodies import RetryPolicy
from taskmq.server.queue_settings import StartRate


class ErrorContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a request was refused."""

    code: str
    message: str
    field: str | None = None
    request_id: str
    retryable: bool
    details: dict[str, Any] = {}


class ErrorEnvelope(msgspec.Struct):
    """Every answer that is no success."""

    error: ErrorContent


class TaskError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a handler reported."""

    type: str
    message: str
    traceback: str | None = None
    truncated: bool = False


class AttemptObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One execution that ended without success."""

    epoch: int
    attempt: int
    worker_id: str | None = None
    started_at: str | None = None
    ended_at: str
    outcome: str
    error: TaskError | None = None


class TaskObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A task."""

    task_id: str
    queue_id: str
    queue: str
    handler: str
    handler_version: str
    payload_version: str
    state: str
    attempt: int
    epoch: int
    max_attempts: int
    created_at: str
    available_at: str
    priority: int | None = None
    dispatch_at: str | None = None
    payload: Any = None
    expires_at: str | None = None
    deadline: str | None = None
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None
    partition: str | None = None
    partition_weight: int | None = None
    resource_key: str | None = None
    resource_max_running: int | None = None
    retention_ms: int | None = None
    reserved_by: str | None = None
    started_at: str | None = None
    lease_until: str | None = None
    worker_id: str | None = None
    cancel_requested_at: str | None = None
    finished_at: str | None = None
    result: Any = None
    error: TaskError | None = None
    reason: str | None = None
    replay_count: int | None = None
    traceparent: str | None = None
    attempts_history: list[AttemptObject] = []


class TaskPage(msgspec.Struct, omit_defaults=True):
    """Some tasks; without ``next_cursor`` the last ones."""

    items: list[TaskObject]
    next_cursor: str | None = None


class BatchAnswerItem(msgspec.Struct, omit_defaults=True):
    """What became of one item."""

    status: int
    data: TaskObject | None = None
    error: ErrorContent | None = None


class BatchAnswer(msgspec.Struct):
    """In the order of the items."""

    items: list[BatchAnswerItem]


class Hold(msgspec.Struct, omit_defaults=True):
    """One rule that holds a task back."""

    rule: str
    text: str
    until: str | None = None


class Why(msgspec.Struct):
    """No holds: the task is eligible."""

    state: str
    holds: list[Hold]


class Replayed(msgspec.Struct):
    """How many were queued again, and how many are left."""

    replayed: int
    remaining: int


class Counts(msgspec.Struct):
    """Unfinished tasks."""

    scheduled: int
    queued: int
    running: int
    retrying: int


class QueueObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A queue."""

    queue_id: str
    name: str
    order: str
    aging_step_ms: int
    weight: int
    paused: bool
    max_running: int | None
    start_rate: StartRate | None
    on_dead: str
    lease_ms: int
    created_at: str
    revision: int
    counts: Counts | None = None
    by_priority: dict[str, int] | None = None
    oldest_ready_ms: int | None = None


class QueuePage(msgspec.Struct, omit_defaults=True):
    """Some queues."""

    items: list[QueueObject]
    next_cursor: str | None = None


class Deleted(msgspec.Struct):
    """It is gone."""

    queue_id: str
    deleted: bool


class Purged(msgspec.Struct):
    """How many were cancelled."""

    cancelled: int


class PartitionObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A partition with something in line, running or blocked."""

    partition: str
    ordered: bool
    weight: int
    waiting: int
    holder: str | None
    blocked_until: str | None
    paused: bool
    held: bool


class PartitionPage(msgspec.Struct, omit_defaults=True):
    """Some partitions."""

    items: list[PartitionObject]
    next_cursor: str | None = None


class Health(msgspec.Struct):
    """It answers."""

    status: str


class Ready(msgspec.Struct):
    """Check → whether it passes."""

    checks: dict[str, bool]


class PartitionDone(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was done."""

    partition: str
    action: str
    cancelled: int | None = None
