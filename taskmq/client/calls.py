"""Every call of the API as a value: what to send, whether it may be sent again, how its answer is read. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from taskmq.client.errors import InvalidArgument, of_error
from taskmq.client.objects import Hold, Partition, Queue, Task
from taskmq.errors import TaskMQError
from taskmq.wire.codes import MAX_BATCH, MAX_BATCH_BODY
from taskmq.wire.strict import dumps

T = TypeVar("T")
Duration = float | timedelta
Answer = tuple[dict[str, Any], Mapping[str, str]]
"""The data, and the headers in lower case."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. ``again``: to send it twice does no more than to send it once."""

    method: str
    path: str
    read: Callable[[dict[str, Any], Mapping[str, str]], T]
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    again: bool = False
    extra: float = 0.0
    """Seconds that the server may wait before it answers."""


def invalid(message: str, where: str | None = None) -> InvalidArgument:
    """A wrong argument, found before anything was sent."""
    error = InvalidArgument(message)
    error.code, error.field, error.details = "INVALID_ARGUMENT", where, {}
    return error


def ms(name: str, value: Duration) -> int:
    """A duration in whole milliseconds."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise invalid(f"{name} must be seconds or a timedelta, not {value!r:.60}", name)
    return round(value * 1000)


def moment(name: str, value: datetime) -> str:
    """An aware datetime as text."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise invalid(f"{name} must be a datetime with a time zone", name)
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_DURATIONS = {
    "delay": "delay_ms",
    "expires_in": "expires_ms",
    "deadline_in": "deadline_ms",
    "timeout": "timeout_ms",
    "retention": "retention_ms",
    "key_ttl": "key_ttl_ms",
    "aging_step": "aging_step_ms",
    "lease": "lease_ms",
}
_RETRY = {"base": "base_ms", "cap": "cap_ms"}
_TIMES = ("available_at", "expires_at", "deadline", "created_from", "created_to")
_DEFAULTS: dict[str, Any] = {
    "handler_version": "v1",
    "payload_version": "v1",
    "payload": None,
    "priority": 0,
    "max_attempts": 3,
    "partition_weight": 1,
    "delay_ms": 0,
    "retention_ms": 604_800_000,
    "retry": {},
}
_RETRY_DEFAULTS = {"backoff": "exponential", "base_ms": 1000, "cap_ms": 300_000, "jitter": True}
_QUEUE_DEFAULTS = {
    "order": "aging",
    "aging_step_ms": 30_000,
    "weight": 1,
    "paused": False,
    "on_dead": "continue",
    "lease_ms": 30_000,
}
_TYPES: dict[str, type[Any]] = {
    **dict.fromkeys(("queue", "queue_id", "handler", "handler_version", "payload_version"), str),
    **dict.fromkeys(("partition", "resource_key", "traceparent"), str),
    **dict.fromkeys(("max_attempts", "partition_weight", "resource_max_running"), int),
    "retry": dict,
}
_KEY = re.compile(r"[!-~]([ -~]{0,510}[!-~])?\Z")


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as fields of a body: None left out, durations and times converted."""
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in ("deadline", "expires_at", "available_at") and not isinstance(value, datetime):
            twin = {"deadline": "deadline_ms", "expires_at": "expires_ms", "available_at": "delay_ms"}[name]
            fields[twin] = ms(name, value)
        elif name in _DURATIONS:
            fields[_DURATIONS[name]] = ms(name, value)
        elif name in _TIMES:
            fields[name] = moment(name, value)
        elif name == "retry":
            fields[name] = {_RETRY.get(k, k): ms(k, v) if k in _RETRY else v for k, v in value.items()}
        else:
            fields[name] = value
    return fields


def _without(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is as it is anyway: a server that does not know a field yet need not."""
    return {
        name: value
        for name, value in fields.items()
        if not (name in defaults and type(value) is type(defaults[name]) and value == defaults[name])
    }


def submission(handler: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a submission; raises InvalidArgument for types that cannot be right."""
    priority = options.get("priority", 0)
    if type(priority) is not int or not 0 <= priority <= 9:
        raise invalid(f"priority {priority!r:.60} is not an integer from 0 to 9", "priority")
    for name, value in {"handler": handler, **options}.items():
        kind = _TYPES.get(name)
        if kind is not None and type(value) is not kind and (value is not None or name == "handler"):
            raise invalid(f"{name} must be {kind.__name__}, not {value!r:.60}", name)
    check_names(options.get("payload"), "payload")
    fields = {"handler": handler, **fields_of(options)}
    if "retry" in fields:
        fields["retry"] = _without(fields["retry"], _RETRY_DEFAULTS)
    return _without(fields, _DEFAULTS)


def check_names(value: Any, where: str) -> None:
    """Raise InvalidArgument where a name in an object is not text: JSON would make it text and say nothing."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise invalid(f"the name {name!r:.60} of an object is not text", where)
            check_names(inner, f"{where}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            check_names(inner, f"{where}[{index}]")


def encode(body: Any) -> bytes:
    """A body as JSON; raises InvalidArgument for what JSON has not."""
    try:
        return dumps(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"cannot be sent as JSON: {error}", "payload") from None


def _json(method: str, path: str, read: Any, body: Any, *, again: bool, headers: dict[str, str] | None = None) -> Any:
    sent = {"Content-Type": "application/json", **(headers or {})}
    return Call(method, path, read, encode(body), sent, again)


def as_task(data: dict[str, Any], headers: Mapping[str, str]) -> Task:
    """A task of an answer."""
    task = msgspec.convert(data, Task)
    task.duplicate = headers.get("idempotency-replayed") == "true"
    return task


def as_queue(data: dict[str, Any], headers: Mapping[str, str]) -> Queue:
    """A queue of an answer."""
    return msgspec.convert({name: value for name, value in data.items() if value is not None}, Queue)


def data_of(data: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The data as it is."""
    return data


def page_of(kind: type[T]) -> Callable[[dict[str, Any], Mapping[str, str]], tuple[list[T], str | None]]:
    """Items and the next cursor."""

    def read(data: dict[str, Any], headers: Mapping[str, str]) -> tuple[list[T], str | None]:
        items = [{name: value for name, value in item.items() if value is not None} for item in data["items"]]
        return msgspec.convert(items, list[kind]), data.get("next_cursor")  # type: ignore[valid-type]

    return read


# ── tasks ──


def submit_task(key: str, handler: str, options: Mapping[str, Any]) -> Call[Task]:
    """``POST /v1/tasks``."""
    if not isinstance(key, str) or not _KEY.match(key):
        raise invalid("the key must be 1 to 512 printable ASCII characters, no space around", "header.Idempotency-Key")
    body = submission(handler, options)
    call: Call[Task] = _json("POST", "/v1/tasks", as_task, body, again=True, headers={"Idempotency-Key": key})
    return call


def batches(items: Sequence[Mapping[str, Any]]) -> list[Call[list[Task | TaskMQError]]]:
    """``POST /v1/tasks:batch``, as many as it takes: at most 1,000 items and 8 MiB each."""
    encoded = []
    for item in items:
        options = dict(item)
        key = options.pop("key", options.pop("idempotency_key", None))
        handler = options.pop("handler", None)
        if not isinstance(key, str):
            raise invalid("the key must be text", "idempotency_key")
        encoded.append(encode({"idempotency_key": key, **submission(handler, options)}))
    calls = []
    chunk: list[bytes] = []
    size = 0
    for data in encoded:
        if chunk and (len(chunk) == MAX_BATCH or size + len(data) + 100 > MAX_BATCH_BODY):
            calls.append(_batch(chunk))
            chunk, size = [], 0
        chunk.append(data)
        size += len(data) + 1
    return [*calls, *([_batch(chunk)] if chunk else [])]


def _batch(chunk: list[bytes]) -> Call[list[Task | TaskMQError]]:
    body = b'{"items":[%b]}' % b",".join(chunk)
    return Call("POST", "/v1/tasks:batch", _batch_answer, body, {"Content-Type": "application/json"}, True)


def _batch_answer(data: dict[str, Any], headers: Mapping[str, str]) -> list[Task | TaskMQError]:
    answers: list[Task | TaskMQError] = []
    for item in data["items"]:
        if "error" in item:
            answers.append(of_error(item["error"], item["status"]))
        else:
            task = msgspec.convert(item["data"], Task)
            task.duplicate = item["status"] == 200
            answers.append(task)
    return answers


def _id(value: str) -> str:
    if not isinstance(value, str):
        raise invalid("an id is text")
    return quote(value, safe="")


def get_task(task_id: str, wait: Duration) -> Call[Task]:
    """``GET /v1/tasks/{id}``."""
    wait_ms = ms("wait", wait)
    query = f"?wait_ms={wait_ms}" if wait_ms else ""
    return Call("GET", f"/v1/tasks/{_id(task_id)}{query}", as_task, again=True, extra=wait_ms / 1000)


def list_page(path: str, kind: type[T], filters: Mapping[str, Any]) -> Call[tuple[list[T], str | None]]:
    """One page of a list."""
    query = {}
    for name, value in filters.items():
        if value is not None:
            listed = isinstance(value, (list, tuple, set))
            query[name] = moment(name, value) if name in _TIMES else ",".join(value) if listed else str(value)
    return Call("GET", f"{path}?{urlencode(query)}" if query else path, page_of(kind), again=True)


def cancel_task(task_id: str, reason: str | None) -> Call[Task]:
    """``POST /v1/tasks/{id}/cancel``."""
    body = {} if reason is None else {"reason": reason}
    call: Call[Task] = _json("POST", f"/v1/tasks/{_id(task_id)}/cancel", as_task, body, again=True)
    return call


def replay_task(task_id: str, expected: int | None, available_at: datetime | None) -> Call[Task]:
    """``POST /v1/tasks/{id}/replay``; repeatable only with the expected count."""
    body = fields_of({"expected_replay_count": expected, "available_at": available_at})
    call: Call[Task] = _json("POST", f"/v1/tasks/{_id(task_id)}/replay", as_task, body, again=expected is not None)
    return call


def replay_tasks(options: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """``POST /v1/tasks:replay``."""
    body = {"state": "FAILED", **fields_of(options)}
    call: Call[dict[str, Any]] = _json("POST", "/v1/tasks:replay", data_of, body, again=False)
    return call


def why_task(task_id: str) -> Call[list[Hold]]:
    """``GET /v1/tasks/{id}/why``."""

    def read(data: dict[str, Any], headers: Mapping[str, str]) -> list[Hold]:
        return msgspec.convert(data["holds"], list[Hold])

    return Call("GET", f"/v1/tasks/{_id(task_id)}/why", read, again=True)


# ── queues ──


def create_queue(name: str, options: Mapping[str, Any]) -> Call[Queue]:
    """``POST /v1/queues``."""
    body = {"name": name, **_without(fields_of(options), _QUEUE_DEFAULTS)}
    call: Call[Queue] = _json("POST", "/v1/queues", as_queue, body, again=True)
    return call


def get_queue(queue_id: str) -> Call[Queue]:
    """``GET /v1/queues/{id}``."""
    return Call("GET", f"/v1/queues/{_id(queue_id)}", as_queue, again=True)


def update_queue(queue_id: str, if_match: int | None, options: Mapping[str, Any]) -> Call[Queue]:
    """``PATCH /v1/queues/{id}``; None brings a default back."""
    nulls = {name: None for name, value in options.items() if value is None}
    headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
    body = {**fields_of(options), **nulls}
    call: Call[Queue] = _json("PATCH", f"/v1/queues/{_id(queue_id)}", as_queue, body, again=False, headers=headers)
    return call


def queue_action(queue_id: str, action: str, body: dict[str, Any] | None = None) -> Call[dict[str, Any]]:
    """pause, resume or purge."""
    path = f"/v1/queues/{_id(queue_id)}/{action}"
    call: Call[dict[str, Any]] = _json("POST", path, data_of, body or {}, again=action != "purge")
    return call


def delete_queue(queue_id: str, if_match: int | None) -> Call[dict[str, Any]]:
    """``DELETE /v1/queues/{id}``."""
    headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
    return Call("DELETE", f"/v1/queues/{_id(queue_id)}", data_of, None, headers, True)


def list_partitions(queue_id: str, filters: Mapping[str, Any]) -> Call[tuple[list[Partition], str | None]]:
    """``GET /v1/queues/{id}/partitions``."""
    return list_page(f"/v1/queues/{_id(queue_id)}/partitions", Partition, filters)


def partition_action(queue_id: str, partition: str, action: str) -> Call[dict[str, Any]]:
    """``POST /v1/queues/{id}/partitions``."""
    body = {"partition": partition, "action": action}
    path = f"/v1/queues/{_id(queue_id)}/partitions"
    call: Call[dict[str, Any]] = _json("POST", path, data_of, body, again=action in ("pause", "resume"))
    return call
