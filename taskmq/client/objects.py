"""What the client returns. Unknown fields are ignored, so a newer server is understood."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler reported."""

    type: str = ""
    message: str = ""
    traceback: str | None = None
    truncated: bool = False


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution that ended without success."""

    epoch: int
    attempt: int
    outcome: str
    ended_at: datetime
    worker_id: str | None = None
    started_at: datetime | None = None
    error: TaskFailure | None = None


class Task(msgspec.Struct, kw_only=True):
    """A task. ``duplicate``: its key was known, it is the first one's."""

    task_id: str
    queue_id: str = ""
    queue: str = ""
    handler: str = ""
    handler_version: str = "v1"
    payload_version: str = "v1"
    state: str = ""
    attempt: int = 0
    epoch: int = 0
    max_attempts: int = 3
    created_at: datetime | None = None
    available_at: datetime | None = None
    priority: int = 0
    dispatch_at: datetime | None = None
    payload: Any = None
    expires_at: datetime | None = None
    deadline: datetime | None = None
    timeout_ms: int | None = None
    partition: str | None = None
    partition_weight: int = 1
    resource_key: str | None = None
    resource_max_running: int | None = None
    retention_ms: int | None = None
    reserved_by: str | None = None
    started_at: datetime | None = None
    lease_until: datetime | None = None
    worker_id: str | None = None
    cancel_requested_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: TaskFailure | None = None
    reason: str | None = None
    replay_count: int = 0
    traceparent: str | None = None
    attempts_history: list[Attempt] = []
    duplicate: bool = False

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")


class Queue(msgspec.Struct, kw_only=True):
    """A queue."""

    queue_id: str
    name: str
    order: str = "aging"
    aging_step_ms: int = 30_000
    weight: int = 1
    paused: bool = False
    max_running: int | None = None
    start_rate: dict[str, int] | None = None
    on_dead: str = "continue"
    lease_ms: int = 30_000
    created_at: datetime | None = None
    revision: int = 1
    counts: dict[str, int] = {}
    by_priority: dict[str, int] = {}
    oldest_ready_ms: int | None = None


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that holds a task back."""

    rule: str
    text: str
    until: datetime | None = None


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A live partition."""

    partition: str
    ordered: bool
    weight: int = 1
    waiting: int = 0
    holder: str | None = None
    blocked_until: datetime | None = None
    paused: bool = False
    held: bool = False
