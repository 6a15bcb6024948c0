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
from taskmq.server.bodies import TEN_YEARS_MS, Submit
from taskmq.server.database.queues import QueueRecord
from taskmq.server.digest import digest
from taskmq.server.errors import ApiError, invalid, too_large
from taskmq.wire import strict
from taskmq.wire.times import format_time, parse_time

EXTRAS = "http"
"""Header of the envelope with what the API shows of a task and the store does not keep, as JSON."""
_TWINS = (("available_at", "delay_ms"), ("expires_at", "expires_ms"), ("deadline", "deadline_ms"))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A submission that may be published. ``too_late``: it may not, unless its key is known already."""

    message: Message
    too_late: ApiError | None = None


def prepare(
    body: Submit, fields: Mapping[str, Any], queue: QueueRecord, key: str, now: int, max_payload: int
) -> Prepared:
    """The message of a submission; raises ApiError. ``now``: the store's clock."""
    times = {name: _time(body, name) for name in ("available_at", "expires_at", "deadline")}
    payload = strict.dumps(body.payload)
    if len(payload) > max_payload:
        raise too_large("payload", max_payload, "payload")
    _check(strict.check_depth, body.payload, "payload", field="payload")
    available_at = _later(times["available_at"], body.delay_ms, now)
    if available_at is not None and available_at - now > TEN_YEARS_MS * 1000:
        raise invalid("more than ten years from now", "available_at")
    expires = _later(times["expires_at"], body.expires_ms, now)
    deadline = _later(times["deadline"], body.deadline_ms, now)
    message = Message(
        id=new_id(),
        queue=queue.queue_id,
        handler=body.handler,
        version=body.handler_version,
        body=_envelope(body, payload, expires, deadline),
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
    return Prepared(message, _too_late(max(now, available_at or now), expires, deadline, now))


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


def _time(body: Submit, name: str) -> int | None:
    value = getattr(body, name)
    if value is UNSET:
        return None
    try:
        return parse_time(value)
    except ValueError as error:
        raise invalid(str(error), name) from None


def _later(at: int | None, duration_ms: Any, now: int) -> int | None:
    if at is not None:
        return at
    return None if duration_ms is UNSET else now + int(duration_ms) * 1000


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
    return Limit(body.resource_key, 1 if body.resource_max_running is UNSET else body.resource_max_running)


def _envelope(body: Submit, payload: bytes, expires: int | None, deadline: int | None) -> bytes:
    """The payload is the handler's one argument, so that a library's worker can run it, too."""
    retry = body.retry
    changed = {
        name: value for name, value in msgspec.structs.asdict(retry).items() if value != getattr(_DEFAULT_RETRY, name)
    }
    extras: dict[str, Any] = {"payload_version": body.payload_version}
    for name, moment in (("expires_at", expires), ("deadline", deadline)):
        if moment is not None:
            extras[name] = format_time(moment)
    for name in ("timeout_ms", "resource_max_running", "traceparent"):
        if getattr(body, name) is not UNSET:
            extras[name] = getattr(body, name)
    if changed:
        extras["retry"] = msgspec.structs.asdict(retry)
    if body.partition_weight != 1:
        extras["partition_weight"] = body.partition_weight
    if body.retention_ms != 604_800_000:
        extras["retention_ms"] = body.retention_ms
    wire = codec.RetryWire(retry.backoff, retry.base_ms / 1000, retry.cap_ms / 1000, retry.jitter) if changed else None
    timeout = None if body.timeout_ms is UNSET else body.timeout_ms * 1000
    headers = {EXTRAS: strict.dumps(extras).decode()}
    args = msgspec.Raw(b"[%b]" % payload)
    return codec.encode(codec.Envelope(args=args, timeout=timeout, retry=wire, headers=headers))


_DEFAULT_RETRY = Submit(handler="x").retry
