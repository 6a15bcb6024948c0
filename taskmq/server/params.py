"""Query parameters: each has a reader and a schema, and whatever is not named is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl

from taskmq.server.errors import invalid
from taskmq.server.paging import DEFAULT_LIMIT, MAX_LIMIT
from taskmq.wire.times import parse_time

_INTEGER = re.compile(r"-?[0-9]{1,16}\Z")
_DIGITS = re.compile(r"0*[1-9][0-9]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
ID = re.compile(r"[0-9a-f]{32}\Z")
NAME = re.compile(r"[A-Za-z0-9_.:/{}-]{1,128}\Z")


@dataclass(frozen=True, slots=True)
class Param:
    """One query parameter. ``read`` raises ValueError with the reason."""

    name: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any]
    default: Any = None


def read_query(raw: bytes, params: Mapping[str, Param]) -> dict[str, Any]:
    """The values of a query string, defaults filled in; raises ApiError."""
    values = {param.name: param.default for param in params.values()}
    if not raw:
        return values
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise invalid("the query string cannot be read", "query") from None
    seen = set()
    for name, text in pairs:
        shown = f"query.{name[:40]}"
        if name not in params:
            raise invalid("there is no such query parameter here", shown)
        if name in seen:
            raise invalid("the query parameter is given twice", shown)
        seen.add(name)
        try:
            values[name] = params[name].read(text)
        except ValueError as error:
            raise invalid(str(error), shown) from None
    return values


def table(*params: Param) -> dict[str, Param]:
    """Parameters by name."""
    return {param.name: param for param in params}


def integer(name: str, low: int, high: int, default: int | None = None) -> Param:
    """An integer within a range."""

    def read(text: str) -> int:
        if not _INTEGER.match(text) or not low <= int(text) <= high:
            raise ValueError(f"not an integer from {low} to {high}")
        return int(text)

    return Param(name, read, {"type": "integer", "minimum": low, "maximum": high}, default)


def matching(name: str, pattern: re.Pattern[str], what: str) -> Param:
    """Text of one form."""

    def read(text: str) -> str:
        if not pattern.match(text):
            raise ValueError(f"not {what}")
        return text

    return Param(name, read, {"type": "string", "pattern": f"^{pattern.pattern.removesuffix(chr(92) + 'Z')}$"})


def text(name: str, most: int) -> Param:
    """Any text up to so many bytes, without control characters: no key has one, and not every store takes them."""

    def read(value: str) -> str:
        if not 1 <= len(value.encode()) <= most or _CONTROL.search(value):
            raise ValueError(f"not text of 1 to {most} bytes without control characters")
        return value

    return Param(name, read, {"type": "string", "minLength": 1, "maxLength": most})


def time(name: str) -> Param:
    """A time, as microseconds."""
    return Param(name, parse_time, {"type": "string", "format": "date-time"})


def choice(name: str, *known: str, default: str | None = None) -> Param:
    """One of a few words."""

    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"not one of {', '.join(known)}")
        return value

    return Param(name, read, {"type": "string", "enum": list(known)}, default)


def choices(name: str, known: type[StrEnum]) -> Param:
    """A comma list of an enumeration's words."""

    def read(value: str) -> list[Any]:
        try:
            return [known(part) for part in value.split(",")]
        except ValueError:
            raise ValueError(f"not a comma list of {', '.join(known)}") from None

    word = "|".join(known)
    return Param(name, read, {"type": "string", "pattern": f"^({word})(,({word}))*$"})


def _limit(value: str) -> int:
    if not _DIGITS.match(value):
        raise ValueError("not an integer from 1 to 1000")
    digits = value.lstrip("0")
    return min(int(digits[:5]), MAX_LIMIT)


LIMIT = Param("limit", _limit, {"type": "integer", "minimum": 1}, DEFAULT_LIMIT)
CURSOR = text("cursor", 1024)
ORDER = choice("order", "asc", "desc", default="desc")
QUEUE_ID = matching("queue_id", ID, "an id of 32 hex digits")
QUEUE_NAME = matching("queue", NAME, "a name")
