"""Durations and moments as users write them: seconds, ``"5m"``, ``timedelta``, or an aware datetime."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from taskmq.errors import InvalidArgument
from taskmq.names import short

Duration = float | int | str | timedelta
"""Seconds, text like ``"30s"``, ``"5m"``, ``"2h"``, ``"1d"``, ``"250ms"``, or a timedelta."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?\Z", re.ASCII)

TEN_YEARS = 3653 * 86400.0


class Moment(NamedTuple):
    """A point in time that the store's clock resolves: absolute, or so many microseconds from its now."""

    us: int
    relative: bool

    def at(self, now: int) -> int:
        """Microseconds since the epoch, given the store's now."""
        return now + self.us if self.relative else self.us


def seconds(what: str, value: Any, low: float, high: float) -> float:
    """A duration in seconds within a range; raises InvalidArgument and names ``what``."""
    number = _as_seconds(what, value)
    if not low <= number <= high:
        raise InvalidArgument(f"{what} {short(value)} is not within {_human(low)} to {_human(high)}")
    return number


def microseconds(what: str, value: Any, low: float, high: float) -> int:
    """A duration in whole microseconds within a range given in seconds; raises InvalidArgument."""
    return round(seconds(what, value, low, high) * 1e6)


def moment(what: str, value: Any) -> Moment:
    """A duration from now or an aware datetime, at most ten years ahead; raises InvalidArgument."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise InvalidArgument(
                f"{what} {value!r} has no time zone: give an aware datetime, e.g. datetime(…, tzinfo=timezone.utc)"
            )
        if value.timestamp() - time.time() > TEN_YEARS:
            raise InvalidArgument(f"{what} {value.isoformat()} is more than ten years ahead")
        return Moment(round(value.timestamp() * 1e6), relative=False)
    return Moment(microseconds(what, value, 0.0, TEN_YEARS), relative=True)


def _as_seconds(what: str, value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        match = _TEXT.match(value.strip())
        if match:
            return float(match[1]) * _UNITS[match[2] or "s"]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise InvalidArgument(
        f'{what} {short(value)} is not a duration: give seconds, text like "30s" or "5m", or a timedelta'
    )


def _human(number: float) -> str:
    for unit in ("w", "d", "h", "m", "s"):
        size = _UNITS[unit]
        if number >= size and number % size == 0:
            return f"{number / size:g}{unit}"
    return f"{number:g}s"
