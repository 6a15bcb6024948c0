from __future__ import annotations

import math
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from taskmq import InvalidArgument, Retry

SECOND = 1_000_000


def delays(policy: Retry, attempts: int) -> list[float]:
    return [policy.delay(attempt, Random(1)) / SECOND for attempt in range(1, attempts + 1)]


def test_exponential_delays_double_up_to_the_cap() -> None:
    """The delays are base, 2·base, 4·base and so on, and never more than the cap."""
    assert delays(Retry(base=1, cap=10, jitter=False), 6) == [1, 2, 4, 8, 10, 10]


def test_linear_delays_grow_by_the_base() -> None:
    """The delays are base, 2·base, 3·base and so on, and never more than the cap."""
    assert delays(Retry(backoff="linear", base=2, cap=7, jitter=False), 5) == [2, 4, 6, 7, 7]


def test_fixed_delays_stay_the_same() -> None:
    """Every delay is the base."""
    assert delays(Retry(backoff="fixed", base=2.5, jitter=False), 3) == [2.5, 2.5, 2.5]


@pytest.mark.parametrize("backoff", ["exponential", "linear", "fixed"])
@pytest.mark.parametrize("base", [0, 1e-6, 1.0, 86400])
def test_the_thousandth_attempt_overflows_nothing(backoff: Any, base: float) -> None:
    """The longest budget and the largest numbers still give a delay within the cap."""
    assert 0 <= Retry(backoff=backoff, base=base, cap=86400).delay(1000, Random(1)) <= 86400 * SECOND


def test_full_jitter_draws_evenly_from_nothing_to_the_delay() -> None:
    """With jitter the delay is anywhere between 0 and the computed one, and on average half of it."""
    rng = Random(7)
    drawn = [Retry(base=10).delay(1, rng) / SECOND for _ in range(2000)]
    assert 0 <= min(drawn) < 0.1
    assert 9.9 < max(drawn) <= 10
    assert math.isclose(sum(drawn) / len(drawn), 5, rel_tol=0.05)


def test_a_delay_is_whole_microseconds() -> None:
    """A delay is an int, whatever the base."""
    delay = Retry(base=1 / 3, jitter=False).delay(1, Random(1))
    assert (type(delay), delay) == (int, 333_333)


def test_durations_may_be_written_as_text_or_timedelta() -> None:
    """Base and cap take every form a duration has."""
    policy = Retry(base="250ms", cap=timedelta(minutes=2), jitter=False)
    assert (policy.delay(1, Random()), policy.cap_s) == (250_000, 120.0)


def test_never_wins_over_on() -> None:
    """An exception that both lists cover is not tried again; one that neither covers is not, either."""
    policy = Retry(on=(OSError, ValueError), never=(FileNotFoundError,))
    assert policy.retries(ConnectionError())
    assert policy.retries(ValueError())
    assert not policy.retries(FileNotFoundError())
    assert not policy.retries(KeyError())


def test_the_default_tries_every_exception_again_but_no_exit() -> None:
    """Without lists every Exception is tried again, SystemExit and KeyboardInterrupt are not."""
    assert Retry().retries(RuntimeError())
    assert not Retry().retries(SystemExit())
    assert not Retry().retries(KeyboardInterrupt())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"max_attempts": 3.0},
        {"max_attempts": True},
        {"backoff": "random"},
        {"base": -1},
        {"base": math.nan},
        {"base": "soon"},
        {"cap": 86401},
        {"cap": None},
        {"jitter": 1},
        {"on": ValueError},
        {"on": [ValueError]},
        {"on": ("ValueError",)},
        {"never": (int,)},
    ],
    ids=str,
)
def test_values_outside_their_range_are_refused(wrong: dict[str, Any]) -> None:
    """Every field is checked when the policy is built, and the message names it."""
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Retry(**wrong)
