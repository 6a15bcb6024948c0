"""Request bodies as types; the OpenAPI document is made from them. ``submissions.py`` checks what a type cannot say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskmq.server.queue_settings import Count, QueueSettings
from taskmq.wire.codes import MAX_BATCH

_PATTERN = r"^[A-Za-z0-9_.:/{}-]{1,%d}$(?!\n)"
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]
Name = Annotated[str, Meta(pattern=_PATTERN % 128)]
Version = Annotated[str, Meta(pattern=_PATTERN % 64)]
Text255 = Annotated[str, Meta(min_length=1, max_length=255)]
Text512 = Annotated[str, Meta(min_length=1, max_length=512)]
Time = Annotated[str, Meta(min_length=20, max_length=32, extra_json_schema={"format": "date-time"})]
FreeJson = Annotated[Any, Meta(extra_json_schema={"description": "any JSON value"})]
TraceParent = Annotated[str, Meta(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$(?!\n)")]
_ITEMS = {"maxItems": MAX_BATCH, "items": {"$ref": "#/components/schemas/BatchItem"}}
TEN_YEARS_MS = 315_360_000_000
DAY_MS = 86_400_000
Later = Annotated[int, Meta(ge=0, le=TEN_YEARS_MS)]
Positive = Annotated[int, Meta(ge=1, le=TEN_YEARS_MS)]
Keep = Annotated[int, Meta(ge=0, le=31_536_000_000)]


class RetryPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """How long to wait before the next attempt."""

    backoff: Literal["fixed", "linear", "exponential"] = "exponential"
    base_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] = 1000
    cap_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] = 300_000
    jitter: bool = True


class Submit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A task to be accepted."""

    queue_id: Id | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    handler: Name
    handler_version: Version = "v1"
    payload_version: Version = "v1"
    payload: FreeJson = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    available_at: Time | UnsetType = UNSET
    delay_ms: Later | UnsetType = UNSET
    expires_at: Time | UnsetType = UNSET
    expires_ms: Positive | UnsetType = UNSET
    deadline: Time | UnsetType = UNSET
    deadline_ms: Positive | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, le=604_800_000)] | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 3
    retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    partition: Text255 | UnsetType = UNSET
    partition_weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    resource_key: Text255 | UnsetType = UNSET
    resource_max_running: Count | UnsetType = UNSET
    retention_ms: Keep = 604_800_000
    key_ttl_ms: Keep | UnsetType = UNSET
    traceparent: (
        Annotated[str, Meta(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$(?!\n)")] | UnsetType
    ) = UNSET


class BatchItem(Submit, forbid_unknown_fields=True, kw_only=True):
    """An item of a batch brings its own key."""

    idempotency_key: Text512


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Items to be accepted together; each has its own answer."""

    items: Annotated[list[Any], Meta(min_length=1, extra_json_schema=_ITEMS)]


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """Why, in at most 256 bytes."""

    reason: Annotated[str, Meta(max_length=256)] = ""


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    """``expected_replay_count``: do it only once, however often it is asked for."""

    expected_replay_count: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    available_at: Time | UnsetType = UNSET


class ReplayMany(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Failed tasks of one queue."""

    queue_id: Id | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    state: Literal["FAILED"]
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class NewQueue(QueueSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A queue to be made."""

    name: Name


class ChangeRate(msgspec.Struct, forbid_unknown_fields=True):
    """A merge patch inside of one; the rate that comes of it must be whole."""

    count: Count | UnsetType | None = UNSET
    period_ms: Annotated[int, Meta(ge=1000, le=86_400_000)] | UnsetType | None = UNSET
    burst: Count | UnsetType | None = UNSET


class ChangeQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A merge patch: what is named is changed, null brings the default back."""

    order: Literal["aging", "strict"] | UnsetType | None = UNSET
    aging_step_ms: Annotated[int, Meta(ge=1000, le=3_600_000)] | UnsetType | None = UNSET
    weight: Count | UnsetType | None = UNSET
    paused: bool | UnsetType | None = UNSET
    max_running: Count | UnsetType | None = UNSET
    start_rate: ChangeRate | UnsetType | None = UNSET
    on_dead: Literal["continue", "hold"] | UnsetType | None = UNSET
    lease_ms: Annotated[int, Meta(ge=5000, le=3_600_000)] | UnsetType | None = UNSET


class Purge(msgspec.Struct, forbid_unknown_fields=True):
    """Which waiting tasks to cancel."""

    states: Annotated[list[Literal["QUEUED", "SCHEDULED", "RETRYING"]], Meta(min_length=1, max_length=3)]


class PartitionAction(msgspec.Struct, forbid_unknown_fields=True):
    """What to do with a partition."""

    partition: Text255
    action: Literal["pause", "resume", "release", "skip_head", "purge"]
