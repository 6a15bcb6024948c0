"""How many tasks a queue's ``rate`` lets start now (model.md §8): a token bucket in integers.

A bucket holds at most ``burst`` tokens and gains ``count`` of them in ``per``; each claimed task takes one and never
gives it back. The level is kept in units of which ``count`` flow in per microsecond and a token costs ``per``
microseconds' worth, so filling and taking are integer arithmetic, the same in Python, Lua and SQL, and no fraction of
a token is ever lost or made. A bucket that nobody has touched is full: None.
"""

from __future__ import annotations

from taskmq.queue import Rate


def _cost(rate: Rate) -> int:
    """Units of one token: the microseconds of ``per``."""
    return round(rate.per * 1e6)


def level_at(rate: Rate, level: int | None, since: int, now: int) -> int:
    """The bucket's level at ``now``, if it was ``level`` at ``since``."""
    full = _cost(rate) * (rate.burst or rate.count)
    if level is None:
        return full
    return min(full, level + max(0, now - since) * rate.count)


def tokens(rate: Rate, level: int) -> int:
    """How many tasks may start at this level."""
    return level // _cost(rate)


def take(rate: Rate, level: int, started: int) -> int:
    """The level after so many starts."""
    return level - started * _cost(rate)


def next_token_at(rate: Rate, level: int, now: int) -> int | None:
    """When the next start is allowed; None: now."""
    missing = _cost(rate) - level
    return None if missing <= 0 else now + -(-missing // rate.count)
