"""Whether a failed attempt is tried again, and how long after. Pure: time and randomness come in as arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from taskmq.durations import Duration, seconds
from taskmq.errors import InvalidArgument
from taskmq.message import DEFAULT_MAX_ATTEMPTS
from taskmq.names import check_int

if TYPE_CHECKING:
    from random import Random

Backoff = Literal["exponential", "fixed", "linear"]

MAX_ATTEMPTS = 1000
MAX_DELAY = 86400.0
_ENOUGH_DOUBLINGS = 60  # a microsecond doubled so often is 36,000 years: the cap has long been reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a failed attempt is tried again.

    ``max_attempts``  executions in all, the first included (1 to 1000)
    ``backoff``       how the delay grows: ``"exponential"`` (base, 2·base, 4·base …), ``"linear"`` (base, 2·base,
                      3·base …) or ``"fixed"``
    ``base``, ``cap`` the first delay and the longest one: seconds, ``"5m"`` or timedelta, at most 24 h
    ``jitter``        full jitter: the delay is drawn evenly from 0 to the computed one, so that tasks which failed
                      together do not come back together
    ``on``            exception classes that are tried again
    ``never``         exception classes that are not, even where ``on`` names a base class of theirs

    Raises InvalidArgument for values outside these ranges.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: Backoff = "exponential"
    base: Duration = 1.0
    cap: Duration = 300.0
    jitter: bool = True
    on: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        check_int("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        if self.backoff not in get_args(Backoff):
            raise InvalidArgument(f'backoff {self.backoff!r} is none of "exponential", "linear", "fixed"')
        seconds("retry base", self.base, 0.0, MAX_DELAY)
        seconds("retry cap", self.cap, 0.0, MAX_DELAY)
        if not isinstance(self.jitter, bool):
            raise InvalidArgument(f"jitter must be True or False, not {self.jitter!r}")
        for name in ("on", "never"):
            _check_classes(name, getattr(self, name))

    @property
    def base_s(self) -> float:
        """``base`` in seconds."""
        return seconds("retry base", self.base, 0.0, MAX_DELAY)

    @property
    def cap_s(self) -> float:
        """``cap`` in seconds."""
        return seconds("retry cap", self.cap, 0.0, MAX_DELAY)

    def delay(self, attempt: int, rng: Random) -> int:
        """Microseconds from the failure of this attempt (the first is 1) to the next one."""
        longest = min(self.base_s * self._growth(attempt), self.cap_s)
        return round(longest * (rng.random() if self.jitter else 1.0) * 1e6)

    def retries(self, error: BaseException) -> bool:
        """Whether an attempt that ended in this error may be tried again; ``never`` wins over ``on``."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def _growth(self, attempt: int) -> int:
        if self.backoff == "exponential":
            return 1 << min(attempt - 1, _ENOUGH_DOUBLINGS)
        return attempt if self.backoff == "linear" else 1


def _check_classes(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(c, type) and issubclass(c, BaseException) for c in value):
        raise InvalidArgument(f"retry {name} must be a tuple of exception classes, not {value!r}")
