from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from taskmq import InvalidArgument
from taskmq.durations import TEN_YEARS, Moment, microseconds, moment, seconds


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (5, 5.0),
        (0, 0.0),
        (2.5, 2.5),
        ("30", 30.0),
        ("30s", 30.0),
        (" 1.5 m ", 90.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
        ("250ms", 0.25),
        (timedelta(minutes=1, microseconds=5), 60.000005),
    ],
)
def test_every_way_to_write_a_duration(written: Any, meant: float) -> None:
    """Numbers are seconds, text has a unit, a timedelta is what it is."""
    assert seconds("delay", written, 0, TEN_YEARS) == pytest.approx(meant, abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [-1, -0.001, "-5s", "", "soon", "5 years", "1e3", "٣s", math.nan, math.inf, "nan", True, None, [], 10**400, b"5s"],
    ids=repr,
)
def test_what_is_no_duration_is_refused(wrong: Any) -> None:
    """Negative, endless and unreadable ones are refused, and the message names the option."""
    with pytest.raises(InvalidArgument, match=r"^delay "):
        seconds("delay", wrong, 0, TEN_YEARS)


def test_the_range_is_said_in_the_message() -> None:
    """A duration outside its range is told what the range is."""
    with pytest.raises(InvalidArgument, match=r"timeout '8d' is not within 1s to 1w"):
        seconds("timeout", "8d", 1.0, 604800.0)


def test_microseconds_are_whole() -> None:
    """Durations inside taskmq are ints."""
    number = microseconds("delay", 0.0000014, 0, 1)
    assert (type(number), number) == (int, 1)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))], ids=str)
def test_an_aware_datetime_is_a_point_in_time(zone: tzinfo) -> None:
    """A datetime with a zone is absolute, to the microsecond, whatever the zone."""
    when = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    assert moment("run_after", when.astimezone(zone)) == Moment(1772366400123456, relative=False)


def test_a_naive_datetime_is_refused() -> None:
    """A datetime without a zone is refused, and the message says what to give."""
    with pytest.raises(InvalidArgument, match="no time zone"):
        moment("run_after", datetime(2026, 3, 1))  # noqa: DTZ001


class NoZone(tzinfo):
    def utcoffset(self, _when: datetime | None) -> timedelta | None:
        return None

    dst = utcoffset

    def tzname(self, _when: datetime | None) -> str | None:
        return None


def test_a_zone_without_an_offset_is_naive() -> None:
    """A datetime whose zone knows no offset is refused as well."""
    with pytest.raises(InvalidArgument, match="no time zone"):
        moment("run_after", datetime(2026, 3, 1, tzinfo=NoZone()))


def test_a_duration_is_a_moment_from_now() -> None:
    """A duration stays relative until the store's clock resolves it."""
    due = moment("run_after", "5m")
    assert due == Moment(300_000_000, relative=True)
    assert due.at(1000) == 300_001_000
    assert Moment(7, relative=False).at(1000) == 7


def test_a_moment_is_at_most_ten_years_ahead() -> None:
    """Eleven years from now are refused."""
    with pytest.raises(InvalidArgument, match="run_after"):
        moment("run_after", timedelta(days=4018))
