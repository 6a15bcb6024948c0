"""The messages of workers as types. Strict like HTTP: an unknown field or type is refused, the connection stays."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskmq.server.bodies import DAY_MS, FreeJson, Id, Name, Version
from taskmq.server.errors import invalid
from taskmq.server.http import convert

MAX_CLAIM = 100
Ref = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Epoch = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Outcome = Literal["success", "retry", "defer", "dead"]


class Item(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A delivery: a task and the epoch of its claim."""

    task_id: Id
    epoch: Epoch


class Capability(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A handler that the worker has, in one exact version."""

    handler: Name
    handler_version: Version = "v1"


class Resume(msgspec.Struct, forbid_unknown_fields=True):
    """A session to go on with, and what the worker holds of it."""

    session_id: Id
    deliveries: Annotated[list[Item], Meta(max_length=1000)]


class Hello(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The first message."""

    type: Literal["hello"]
    protocol: int
    worker_id: Name
    capabilities: Annotated[list[Capability], Meta(min_length=1, max_length=256)]
    capacity: Annotated[int, Meta(ge=1, le=1000)]
    resource_keys: bool = False
    sdk: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    token: Annotated[str, Meta(max_length=128)] | UnsetType = UNSET
    resume: Resume | UnsetType = UNSET


class Claim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Up to ``n`` tasks of these queues, by id or name."""

    type: Literal["claim"]
    ref: Ref
    queues: Annotated[list[Name], Meta(min_length=1, max_length=64)]
    n: Annotated[int, Meta(ge=1, le=MAX_CLAIM)]


class Start(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """About to run one task, or several."""

    type: Literal["start"]
    ref: Ref
    task_id: Id | UnsetType = UNSET
    epoch: Epoch | UnsetType = UNSET
    items: Annotated[list[Item], Meta(min_length=1, max_length=100)] | UnsetType = UNSET


class Renew(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Still there, and still holding these."""

    type: Literal["renew"]
    ref: Ref
    items: Annotated[list[Item], Meta(max_length=1000)]


class Failure(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a handler raised."""

    type: str = "Error"
    message: str = ""
    traceback: str = ""


class FinishItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How one execution ended."""

    task_id: Id
    epoch: Epoch
    outcome: Outcome
    result: FreeJson = None
    error: Failure | UnsetType = UNSET
    delay_ms: Annotated[int, Meta(ge=0, le=3650 * DAY_MS)] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    block_partition: bool = False


class Finish(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How one execution ended, or several."""

    type: Literal["finish"]
    ref: Ref
    task_id: Id | UnsetType = UNSET
    epoch: Epoch | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    result: FreeJson = None
    error: Failure | UnsetType = UNSET
    delay_ms: Annotated[int, Meta(ge=0, le=3650 * DAY_MS)] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    block_partition: bool = False
    items: Annotated[list[FinishItem], Meta(min_length=1, max_length=100)] | UnsetType = UNSET


class Release(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Hands back what was not started."""

    type: Literal["release"]
    ref: Ref
    items: Annotated[list[Item], Meta(max_length=1000)]


class Progress(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far a task is."""

    type: Literal["progress"]
    ref: Ref
    task_id: Id
    epoch: Epoch
    done: Annotated[float, Meta(ge=-1e15, le=1e15)]
    total: Annotated[float, Meta(ge=-1e15, le=1e15)] | UnsetType = UNSET
    note: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET


class Drain(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """No more claims; say when nothing is held."""

    type: Literal["drain"]
    ref: Ref


Message = Hello | Claim | Start | Renew | Finish | Release | Progress | Drain
KINDS: dict[str, type[Any]] = {
    "hello": Hello,
    "claim": Claim,
    "start": Start,
    "renew": Renew,
    "finish": Finish,
    "release": Release,
    "progress": Progress,
    "drain": Drain,
}
_SINGLE_FINISH = ("task_id", "epoch", "outcome", "error", "delay_ms", "reason")
_ALLOWED = {
    "success": {"result", "reason"},
    "retry": {"error", "delay_ms", "block_partition", "reason"},
    "defer": {"delay_ms", "block_partition", "reason"},
    "dead": {"error", "reason"},
}


def read(value: Any) -> Message:
    """A decoded message as its type; raises ApiError."""
    if not isinstance(value, dict):
        raise invalid("a message is a JSON object")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise invalid("there is no such type of message", "type")
    message: Message = convert(value, KINDS[kind])
    return message


def started_items(message: Start) -> list[Item]:
    """What a start names, one or many; raises ApiError."""
    single = message.task_id is not UNSET or message.epoch is not UNSET
    if single is (message.items is not UNSET):
        raise invalid("give either task_id and epoch, or items", "items")
    if message.items is not UNSET:
        return message.items
    if message.task_id is UNSET or message.epoch is UNSET:
        raise invalid("task_id and epoch belong together", "epoch")
    return [Item(message.task_id, message.epoch)]


def finished_items(message: Finish) -> list[FinishItem]:
    """What a finish says, of one or many, each still to be checked; raises ApiError."""
    if message.items is not UNSET:
        if any(getattr(message, name) is not UNSET for name in _SINGLE_FINISH) or message.result is not None:
            raise invalid("give either the fields of one, or items", "items")
        return message.items
    for name in ("task_id", "epoch", "outcome"):
        if getattr(message, name) is UNSET:
            raise invalid(f"Object missing required field `{name}`", name)
    return [FinishItem(**{name: getattr(message, name) for name in FinishItem.__struct_fields__})]


def check_finish(item: FinishItem) -> None:
    """Whether its fields are those of its outcome; raises ApiError."""
    given = {name for name in ("error", "delay_ms", "reason") if getattr(item, name) is not UNSET}
    given |= {"result"} if item.result is not None else set()
    given |= {"block_partition"} if item.block_partition else set()
    wrong = sorted(given - _ALLOWED[item.outcome])
    if wrong:
        raise invalid(f"{wrong[0]} is not for the outcome {item.outcome}", wrong[0])
    if item.reason is not UNSET and len(item.reason.encode()) > 256:
        raise invalid("longer than 256 bytes", "reason")
