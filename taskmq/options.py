"""The options a task is published with: their names, ranges and how they become fields of a message (defaults.md)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from taskmq.codec import RetryWire
from taskmq.durations import Duration, Moment, microseconds, moment
from taskmq.errors import InvalidArgument, PayloadTooLarge
from taskmq.names import check_code, check_key, check_name, check_priority, has_control, short
from taskmq.policy.retry import Retry
from taskmq.queue import Limit, Partition

WEEK = 7 * 86400.0
YEAR = 365 * 86400.0
SHORTEST_TIMEOUT = 0.001
MAX_TAGS = 16
MAX_LABELS = 4096
"""Bytes that headers and tags may have together."""


class PublishOptions(TypedDict, total=False):
    """What ``using`` takes. Durations are seconds, text like ``"5m"`` or timedelta; moments may be aware datetimes too.

    ``queue``       instead of the handler's
    ``priority``    0 to 9, larger is more urgent
    ``run_after``   not before this moment (at most ten years ahead; past means now) · ``delay`` the same as a duration
    ``partition``   ``"!x"`` is ordered, ``"x"`` parallel; or a Partition · ``ordered_by="x"`` is ``partition="!x"``
    ``key``         idempotency key, 1 to 512 bytes: same key, same content is the same task
    ``key_ttl``     free the key so long after acceptance (at most 365 days) · ``key_until="finished"``: when it ends
    ``expires``     not started by then: EXPIRED
    ``deadline``    not finished by then: EXPIRED
    ``timeout``     bound of one attempt, at most 7 days
    ``retry``       numbers instead of the handler's; ``on`` and ``never`` belong to ``@app.task``
    ``limit``       at most so many tasks of one key run at once
    ``retention``   keep record and result so long after the end, 0 to 365 days
    ``headers``     text to text · ``tags`` at most 16; both together at most 4 KiB
    ``connection``  publish in this connection's open transaction (SQL stores): the task exists iff that commits
    """

    queue: str
    priority: int
    run_after: Duration | datetime | None
    delay: Duration | None
    partition: str | Partition | None
    ordered_by: str | None
    key: str | None
    key_ttl: Duration | None
    key_until: Literal["retention", "finished"]
    expires: Duration | datetime | None
    deadline: Duration | datetime | None
    timeout: Duration | None
    retry: Retry
    limit: Limit | None
    retention: Duration | None
    headers: Mapping[str, str] | None
    tags: Sequence[str] | None
    connection: Any


@dataclass(frozen=True, slots=True)
class Fields:
    """Checked options: fields of the Message, and fields of the Envelope inside it."""

    message: Mapping[str, Any]
    envelope: Mapping[str, Any]

    def over(self, base: Mapping[str, Any]) -> Fields:
        """These fields, and those of ``base`` where these say nothing."""
        return Fields({**base, **self.message}, self.envelope)


def check_options(given: Mapping[str, Any]) -> Fields:
    """The options as fields; raises InvalidArgument, with the option's name, for anything outside its range."""
    message: dict[str, Any] = {}
    envelope: dict[str, Any] = {}
    refuse_unknown("option", given, PublishOptions.__annotations__)
    _refuse_contradictions(given)
    for name, value in given.items():
        if name == "connection":
            continue  # says where to publish, and nothing of the message
        if name in _MESSAGE:
            field, check = _MESSAGE[name]
            message[field] = check(value) if value is not None or name in _NEVER_NONE else None
        elif value is not None:
            _ENVELOPE[name](value, message, envelope)
    _check_labels(envelope)
    return Fields(message, envelope)


def check_timeout(value: Any) -> int:
    """The bound of one attempt in microseconds."""
    return microseconds("timeout", value, SHORTEST_TIMEOUT, WEEK)


def refuse_unknown(
    what: str, given: Iterable[str], known: Iterable[str], error: type[Exception] = InvalidArgument
) -> None:
    """Raise ``error`` for the first name that is not a known one, with the name that was probably meant."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise error(f"there is no {what} {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def _refuse_contradictions(given: Mapping[str, Any]) -> None:
    for one, other in (("run_after", "delay"), ("partition", "ordered_by")):
        if given.get(one) is not None and given.get(other) is not None:
            raise InvalidArgument(f"{one} and {other} say the same thing: give one of them")
    for name in ("key_ttl", "key_until"):
        if given.get(name) is not None and given.get("key") is None:
            raise InvalidArgument(f"{name} needs key")


# ── one check an option ──────────────────────────────────────────────────────────────────────────────────────────────


def _delay(value: Any) -> Moment:
    if isinstance(value, datetime):
        raise InvalidArgument(f"delay {short(value)} is a moment: give it as run_after")
    return moment("delay", value)


def _partition(value: Any) -> Partition:
    return value if isinstance(value, Partition) else Partition(check_code(value))


def _ordered_by(value: Any) -> Partition:
    if not isinstance(value, str):
        raise InvalidArgument(f"ordered_by {short(value)} is not text")
    return Partition("!" + check_code(value))


def _key_until(value: Any) -> str:
    if value not in ("retention", "finished"):
        raise InvalidArgument(f'key_until {short(value)} is neither "retention" nor "finished"')
    return str(value)


def _limit(value: Any) -> Limit:
    if not isinstance(value, Limit):
        raise InvalidArgument(f"limit {short(value)} is not a Limit, e.g. Limit('user:7', 2)")
    return value


_MESSAGE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "queue": ("queue", lambda value: check_name("queue", value)),
    "priority": ("priority", check_priority),
    "run_after": ("run_after", lambda value: moment("run_after", value)),
    "delay": ("run_after", _delay),
    "partition": ("partition", _partition),
    "ordered_by": ("partition", _ordered_by),
    "key": ("key", lambda value: check_key("key", value)),
    "key_ttl": ("key_ttl", lambda value: microseconds("key_ttl", value, 0.0, YEAR)),
    "key_until": ("key_until", _key_until),
    "expires": ("expires", lambda value: moment("expires", value)),
    "deadline": ("deadline", lambda value: moment("deadline", value)),
    "limit": ("limit", _limit),
    "retention": ("retention", lambda value: microseconds("retention", value, 0.0, YEAR)),
}
_NEVER_NONE = frozenset({"queue", "priority", "key_until"})


def _retry(value: Any, message: dict[str, Any], envelope: dict[str, Any]) -> None:
    if not isinstance(value, Retry):
        raise InvalidArgument(f"retry {short(value)} is not a Retry, e.g. Retry(max_attempts=5)")
    if value.on != (Exception,) or value.never:
        raise InvalidArgument("retry on and never are classes and cannot be sent: they belong to @app.task(retry=…)")
    message["max_attempts"] = value.max_attempts
    envelope["retry"] = RetryWire(backoff=value.backoff, base=value.base_s, cap=value.cap_s, jitter=value.jitter)


def _timeout(value: Any, _message: dict[str, Any], envelope: dict[str, Any]) -> None:
    envelope["timeout"] = check_timeout(value)


def _headers(value: Any, _message: dict[str, Any], envelope: dict[str, Any]) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for item in value.items() for text in item):
        raise InvalidArgument(f"headers must map text to text, not be {short(value)}")
    for text in (text for item in value.items() for text in item):
        if has_control(text):
            raise InvalidArgument(f"headers: {short(text)} has a control character")
    envelope["headers"] = dict(value)


def _tags(value: Any, message: dict[str, Any], envelope: dict[str, Any]) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidArgument(f"tags must be a list of texts, not {short(value)}")
    if len(value) > MAX_TAGS:
        raise InvalidArgument(f"{len(value)} tags are more than {MAX_TAGS}")
    envelope["tags"] = [check_key("tag", tag) for tag in value]
    message["tags"] = tuple(value)


_ENVELOPE: dict[str, Callable[[Any, dict[str, Any], dict[str, Any]], None]] = {
    "retry": _retry,
    "timeout": _timeout,
    "headers": _headers,
    "tags": _tags,
}


def _check_labels(envelope: Mapping[str, Any]) -> None:
    texts = [text for item in envelope.get("headers", {}).items() for text in item] + envelope.get("tags", [])
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"headers have a text that is none: {error}") from None
    if size > MAX_LABELS:
        raise PayloadTooLarge(
            f"headers and tags are {size:,} bytes; {MAX_LABELS:,} are allowed", size=size, limit=MAX_LABELS
        )
