"""Queues, partitions and limits as users write them.

Ranges and defaults: design page ``defaults.md``. Everything is checked when it is built, so a wrong value fails
where it was written, never in the middle of a publish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taskmq.durations import Duration, microseconds, seconds
from taskmq.errors import InvalidArgument
from taskmq.names import check_code, check_int, check_key, short

Order = Literal["strict", "aging"]
OnDead = Literal["continue", "hold"]

MAX_WEIGHT = 1_000_000
MAX_COUNT = 1_000_000
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At most ``count`` starts in ``per`` seconds, up to ``burst`` of them at once (default: ``count``)."""

    count: int
    per: float = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        check_int("rate count", self.count, 1, MAX_COUNT)
        seconds("rate per", self.per, 0.001, 86400.0)
        if self.burst is not None:
            check_int("rate burst", self.burst, 1, MAX_COUNT)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """``"100/s"``, ``"5/m"`` or ``"20/h"``; raises InvalidArgument for anything else."""
        count, slash, unit = text.partition("/")
        if not slash or not count.isascii() or not count.isdigit() or len(count) > 9 or unit not in _PERIODS:
            raise InvalidArgument(f'rate {short(text)} is not of the form "N/s", "N/m" or "N/h"')
        return cls(count=int(count), per=_PERIODS[unit])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """Settings of one queue. They seed the queue once; later worker starts only report drift.

    ``weight``       share among queues whose heads have the same priority (1 to 1,000,000)
    ``order``        ``"strict"``: larger priority first, then first in, first out;
                     ``"aging"``: each priority level is worth ``aging_step`` of waiting (model.md §4)
    ``aging_step``   seconds, ``"5m"`` or timedelta, 1 s to 1 h
    ``max_running``  tasks of the queue in workers' hands at once, over all processes
    ``max_queued``   a publish above it raises QueueFull
    ``rate``         starts per time, ``"100/s"`` or Rate
    ``paused``       nothing is claimed
    ``on_dead``      what a dead task does to its ordered partition: ``"continue"`` or ``"hold"``
    ``lease``        seconds of a delivery's lease; None: the app's
    """

    weight: int = 1
    order: Order = "strict"
    aging_step: Duration = 30.0
    max_running: int | None = None
    max_queued: int | None = None
    rate: Rate | str | None = None
    paused: bool = False
    on_dead: OnDead = "continue"
    lease: Duration | None = None

    def __post_init__(self) -> None:
        check_int("queue weight", self.weight, 1, MAX_WEIGHT)
        if self.order not in ("strict", "aging"):
            raise InvalidArgument(f'queue order {short(self.order)} is neither "strict" nor "aging"')
        seconds("aging_step", self.aging_step, 1.0, 3600.0)
        for name in ("max_running", "max_queued"):
            value = getattr(self, name)
            if value is not None:
                check_int(f"queue {name}", value, 1, MAX_COUNT)
        if isinstance(self.rate, str):
            object.__setattr__(self, "rate", Rate.parse(self.rate))
        elif self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidArgument(f'rate {short(self.rate)} is neither text like "100/s" nor a Rate')
        if not isinstance(self.paused, bool):
            raise InvalidArgument(f"paused must be True or False, not {short(self.paused)}")
        if self.on_dead not in ("continue", "hold"):
            raise InvalidArgument(f'on_dead {short(self.on_dead)} is neither "continue" nor "hold"')
        if self.lease is not None:
            seconds("queue lease", self.lease, 0.2, 3600.0)

    @property
    def aging_us(self) -> int:
        """Microseconds that one priority level is worth; 0 in a strict queue."""
        return microseconds("aging_step", self.aging_step, 1.0, 3600.0) if self.order == "aging" else 0

    @property
    def lease_us(self) -> int | None:
        """Microseconds of a lease; None: the app's."""
        return None if self.lease is None else microseconds("queue lease", self.lease, 0.2, 3600.0)


@dataclass(frozen=True, slots=True)
class Partition:
    """A keyed flow inside a queue: ordered (one at a time, in order) or parallel (a fair share).

    ``code``         1 to 255 bytes of any text without control characters. A code that starts with ``!`` is
                     an ordered partition: ``"!x"`` and ``"x"`` are two partitions.
    ``weight``       share among the partitions of the queue; None keeps the partition's (1 at first)
    ``max_running``  at most so many of a parallel partition's tasks at once
    ``ordered``      may be given to say what the code says; contradicting it raises InvalidArgument
    """

    code: str
    weight: int | None = None
    max_running: int | None = None
    ordered: bool | None = None

    def __post_init__(self) -> None:
        check_code(self.code)
        if self.code == "!":
            raise InvalidArgument('partition "!" is an ordered partition without a code: write "!" and a code')
        ordered = self.code.startswith("!")
        if self.ordered is not None and self.ordered is not ordered:
            kind, other = ("ordered", "parallel") if ordered else ("parallel", "ordered")
            raise InvalidArgument(
                f"partition {self.code!r} is {kind} by its code and cannot be {other}: "
                "an ordered partition's code starts with \"!\", a parallel one's does not"
            )
        object.__setattr__(self, "ordered", ordered)
        if self.weight is not None:
            check_int("partition weight", self.weight, 1, MAX_WEIGHT)
        if self.max_running is not None:
            check_int("partition max_running", self.max_running, 1, MAX_COUNT)
            if ordered:
                raise InvalidArgument("max_running is for parallel partitions; an ordered one runs one task at a time")


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``n`` tasks that carry this ``key`` run at once, over all queues of the namespace."""

    key: str
    n: int

    def __post_init__(self) -> None:
        check_key("limit key", self.key)
        check_int("limit", self.n, 1, MAX_COUNT)


__all__ = ["Duration", "Limit", "OnDead", "Order", "Partition", "QueueConfig", "Rate"]
