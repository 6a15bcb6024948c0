"""From the body of a submission to a message for the store: what a type cannot say, and what the store must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from taskmq import codec
from taskmq.durations import Moment
from taskmq.errors import InvalidArgument
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.names import check_code, check_key
from taskmq.queue import Limit, Partition
from taskmq.server.bodies import TEN_YEARS_MS, RetryPolicy, Submit
from taskmq.server.database.queues import QueueRecord
from taskmq.server.digest import digest
from taskmq.server.errors import ApiError, invalid, too_large
from taskmq.state import TaskInfo, TaskState
from taskmq.wire import strict
from taskmq.wire.times import format_time, parse_time

EXTRAS = "http"
"""Header of the envelope with what the API shows of a task and the store does not keep, as JSON."""
UNBOUNDED = 1_000_000
"""Of a resource key that a task gives no bound for: the largest there is."""
_TWINS = (("available_at", "delay_ms"), ("expires_at", "expires_ms"), ("deadline", "deadline_ms"))


@dataclass(slots=True)
class Prepared:
    """A submission that may be published. ``too_late``: it may not, unless its key is known already."""

    message: Message
    headers: dict[str, str]
    """Those of its envelope."""
    too_late: ApiError | None = None


def prepare(
    body: Submit, fields: Mapping[str, Any], queue: QueueRecord, key: str, now: int, max_payload: int
) -> Prepared:
    """The message of a submission; raises ApiError. ``now``: the store's clock."""
    available_at, expires, deadline = (_moment(body, time, duration, now) for time, duration in _TWINS)
    payload = strict.pack(body.payload)
    if len(payload) > max_payload:
        raise too_large("payload", max_payload, "payload")
    if isinstance(body.payload, (dict, list)):
        _check(strict.check_depth, body.payload, "payload", field="payload")
    if available_at is not None and available_at - now > TEN_YEARS_MS * 1000:
        raise invalid("more than ten years from now", "available_at")
    headers = _headers(body, expires, deadline)
    message = Message(
        id=new_id(),
        queue=queue.queue_id,
        handler=body.handler,
        version=body.handler_version,
        body=_envelope(body, payload, headers),
        priority=body.priority,
        run_after=None if available_at is None or available_at <= now else Moment(available_at, relative=False),
        partition=_partition(body),
        key=key,
        key_ttl=None if body.key_ttl_ms is UNSET else body.key_ttl_ms * 1000,
        expires=None if expires is None else Moment(expires, relative=False),
        deadline=None if deadline is None else Moment(deadline, relative=False),
        max_attempts=body.max_attempts,
        limit=_limit(body),
        retention=body.retention_ms * 1000,
        content=digest(fields),
    )
    return Prepared(message, headers, _too_late(max(now, available_at or now), expires, deadline, now))


def accepted(prepared: Prepared, created_at: int, aging_us: int) -> TaskInfo:
    """A task as it was stored at ``created_at``, without a look at the store; without its payload."""
    message = prepared.message
    available_at = max(created_at, message.run_after.us) if message.run_after is not None else created_at
    return TaskInfo(
        id=message.id,
        queue=message.queue,
        handler=message.handler,
        version=message.version,
        state=TaskState.QUEUED if available_at <= created_at else TaskState.SCHEDULED,
        priority=message.priority,
        seq=0,
        attempt=0,
        max_attempts=message.max_attempts,
        epoch=0,
        partition=message.partition.code if message.partition is not None else None,
        limit=message.limit,
        headers=prepared.headers,
        created_at=created_at,
        available_at=available_at,
        dispatch_at=available_at - message.priority * aging_us,
    )


def check_twins(body: Submit) -> None:
    """Both forms of one time, both or no names of the queue, what belongs together."""
    for time, duration in _TWINS:
        if getattr(body, time) is not UNSET and getattr(body, duration) is not UNSET:
            raise invalid(f"{time} and {duration} say the same: give one of them", duration)
    if (body.queue_id is UNSET) is (body.queue is UNSET):
        raise invalid("give exactly one of queue_id and queue", "queue_id")
    if body.resource_max_running is not UNSET and body.resource_key is UNSET:
        raise invalid("resource_max_running needs a resource_key", "resource_max_running")
    if body.partition_weight != 1 and body.partition is UNSET:
        raise invalid("partition_weight needs a partition", "partition_weight")
    if body.partition is not UNSET:
        _check(check_code, body.partition, field="partition")
        if body.partition == "!":
            raise invalid("an ordered partition needs a code after its !", "partition")
    if body.resource_key is not UNSET:
        _check(check_key, "resource_key", body.resource_key, field="resource_key")
        if len(body.resource_key.encode()) > 255:
            raise invalid("longer than 255 bytes", "resource_key")


def check_header_key(key: str | None) -> str:
    """The Idempotency-Key of a request, taken literally; raises ApiError."""
    if key is None:
        raise invalid("an Idempotency-Key is needed", "header.Idempotency-Key")
    if not 1 <= len(key) <= 512 or key != key.strip(" ") or any(not " " <= c <= "~" for c in key):
        raise invalid("not 1 to 512 printable ASCII characters without space around", "header.Idempotency-Key")
    return key


def check_batch_key(key: str) -> str:
    """The key of a batch's item; raises ApiError."""
    _check(check_key, "idempotency_key", key, field="idempotency_key")
    return key


def _check(check: Any, *args: Any, field: str) -> None:
    try:
        check(*args)
    except (InvalidArgument, strict.NotStrict) as error:
        raise invalid(str(error), field) from None


def _moment(body: Submit, time: str, duration: str, now: int) -> int | None:
    """One of the twins in microseconds since the epoch."""
    later = getattr(body, duration)
    if later is not UNSET:
        return now + int(later) * 1000
    value = getattr(body, time)
    if value is UNSET:
        return None
    try:
        return parse_time(value)
    except ValueError as error:
        raise invalid(str(error), time) from None


def _too_late(available_at: int, expires: int | None, deadline: int | None, now: int) -> ApiError | None:
    for name, moment in (("expires_at", expires), ("deadline", deadline)):
        if moment is not None and moment <= now:
            return invalid(f"{name} is past", name)
        if moment is not None and moment <= available_at:
            return invalid(f"{name} is before available_at", name)
    return None


def _partition(body: Submit) -> Partition | None:
    if body.partition is UNSET:
        return None
    return Partition(body.partition, weight=body.partition_weight)


def _limit(body: Submit) -> Limit | None:
    if body.resource_key is UNSET:
        return None
    return Limit(body.resource_key, UNBOUNDED if body.resource_max_running is UNSET else body.resource_max_running)


def _headers(body: Submit, expires: int | None, deadline: int | None) -> dict[str, str]:
    """What the API shows of the task and the store does not keep; nothing for a task with nothing of its own."""
    extras: dict[str, Any] = {}
    if body.payload_version != "v1":
        extras["payload_version"] = body.payload_version
    for name, moment in (("expires_at", expires), ("deadline", deadline)):
        if moment is not None:
            extras[name] = format_time(moment)
    for name in ("timeout_ms", "resource_max_running", "traceparent"):
        value = getattr(body, name)
        if value is not UNSET:
            extras[name] = value
    if body.retry != _DEFAULT_RETRY:
        extras["retry"] = msgspec.structs.asdict(body.retry)
    if body.partition_weight != 1:
        extras["partition_weight"] = body.partition_weight
    if body.retention_ms != 604_800_000:
        extras["retention_ms"] = body.retention_ms
    return {EXTRAS: strict.pack(extras).decode()} if extras else {}


def _envelope(body: Submit, payload: bytes, headers: dict[str, str]) -> bytes:
    """The payload is the handler's one argument, so that a library's worker can run it, too."""
    retry, wire = body.retry, None
    if retry != _DEFAULT_RETRY:
        wire = codec.RetryWire(retry.backoff, retry.base_ms / 1000, retry.cap_ms / 1000, retry.jitter)
    timeout = None if body.timeout_ms is UNSET else body.timeout_ms * 1000
    args = msgspec.Raw(b"[%b]" % payload)
    return codec.encode(codec.Envelope(args=args, timeout=timeout, retry=wire, headers=headers))


_DEFAULT_RETRY = RetryPolicy()
