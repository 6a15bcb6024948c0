"""Times on the wire: RFC 3339 with an offset in, UTC with six digits out; microseconds since the epoch inside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([Zz])|([+-])(\d\d):(\d\d))", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_time(text: str) -> int:
    """Microseconds since the epoch; raises ValueError for all but an RFC 3339 time of the years 1970 to 9999."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time like 2026-11-29T21:47:15.123456Z, with Z or an offset")
    year, month, day, hour, minute, second, fraction, _, sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    if (hours is not None and int(hours) > 23) or (minutes is not None and int(minutes) > 59):
        raise ValueError("its offset is no offset")
    try:
        moment = datetime(
            *(int(year), int(month), int(day), int(hour), int(minute), int(second)),
            microsecond=int((fraction or "").ljust(6, "0")),
            tzinfo=timezone(-offset if sign == "-" else offset),
        )
        us = (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise ValueError(f"not a time: {error}") from None
    if not 0 <= us <= MAX_TIME:
        raise ValueError("outside the years 1970 to 9999")
    return us


MAX_TIME = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def format_time(us: int) -> str:
    """``2026-11-29T21:47:15.123456Z``."""
    return f"{(_EPOCH + timedelta(microseconds=us)).isoformat(timespec='microseconds')[:26]}Z"
