"""How much a worker may hold, what must go back, and when to settle: numbers in, a decision out.

Prefetch hides the store's latency, and it hurts: what one worker holds nobody else can start, and what arrives
later and is more urgent has to wait for it. So a worker holds at most what its pool starts within 20 ms. How much
that is can only be forecast, from recent run times; measured, no forecast is honest by itself. When tasks turn from
short to long, an urgent task waited up to 1.6 s behind jobs that were taken on the word of yesterday's run times,
whichever estimator was used (mean, EWMA, 95th percentile; the maximum of 64: 0.3 s). Two halves make it honest:

* the forecast also looks at how long the running ones have been running already, which stops new prefetch as soon
  as the pool is stuck (without it jobs were reserved and handed back in a circle, 1.6 times each);
* *the limit is a clock, not a forecast*: what has been held for 20 ms goes back, in order, at once. Then an urgent
  task waited 49–57 ms, as long as with no prefetch at all (one running task of 50 ms), at the same throughput.

A band goes back as a whole, or what is left of it would overtake what went. So the worker fills only half of the time
it may hold: filled to the brim, every batch that is a little late goes back, and the measured worker handed back every
second of its tasks (2,143 of 4,000 of 1 ms; half filled: none), at the same throughput.

And only whole tasks a thread: what a thread cannot start within that time is not held at all. Held nevertheless (the
fraction of a task that eight threads together have time for), each thread that ended took a held task before the
urgent one could even be reserved: it started twice as late.

After a hand-back nothing is prefetched until a task has ended: the forecast has just been proved wrong.
``prefetch=N`` replaces all of this by a number, clock included: the user has said what may be held.

Settling has its own trade. Outcomes that come close together are cheaper settled together, but a lone one must not
wait for company that does not come. So the fetch thread waits only when recent outcomes came less than 1 ms apart, and
never longer than 2 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

HOLD = 0.020
"""Seconds that a job may be held before it is started or goes back."""
FILL = HOLD / 2
"""Seconds of work, by the forecast, that are reserved ahead."""
MOST = 256
"""Most jobs held beyond the running ones; more did not make no-op tasks any faster."""
SHORTEST = 1e-6
"""No run time is taken for less: it divides."""

CLOSE = 0.001
"""Outcomes closer together than this (in seconds) wait for company."""
COMPANY = 0.002
"""The longest an outcome waits for company."""
LONGEST_GAP = 0.010
"""Gaps count at most so much, so that a quiet hour is soon forgotten."""

BRISK = 50e-6
"""Seconds: a run that is shorter cannot have waited for anything."""
MOSTLY = 0.9

_KEEP = 0.9


def smooth(average: float | None, mean: float, count: int) -> float:
    """An exponential average after ``count`` further values whose mean is given."""
    if average is None:
        return mean
    keep = _KEEP**count
    return average * keep + mean * (1.0 - keep)


def most_in_hand(
    concurrency: int, fixed: int | None, run_time: float | None, elapsed: float | None, distrust: bool = False
) -> int:
    """How many jobs, running ones included, a worker may have in its hands.

    ``fixed``     the user's prefetch, None for "auto"
    ``run_time``  average of recent runs, None before the first
    ``elapsed``   mean of how long the running ones have been running, None while nothing runs
    ``distrust``  something was handed back by the clock since a task last ended
    """
    if fixed is not None:
        return concurrency + fixed
    if run_time is None or distrust:
        return concurrency
    forecast = max(run_time, elapsed or 0.0, SHORTEST)
    return concurrency + min(MOST, concurrency * int(FILL / forecast))


def room(cap: int, in_hand: int, freed: int) -> int:
    """How many to reserve. Whatever the cap says, a worker that frees a thread may reserve for it.

    Otherwise a cap that has collapsed below what is held would stop all reserving until the hold has drained.
    """
    return max(cap - in_hand, freed, 0)


def first_overheld(oldest: Sequence[float | None], now: float) -> int | None:
    """The first band that holds a job longer than it may; that band and all below it go back.

    ``oldest``: when each band's first job was claimed, highest priority first. The bands below go too, although
    younger: they would start before what was handed back, and it was in front of them.
    """
    for band, claimed in enumerate(oldest):
        if claimed is not None and now - claimed > HOLD:
            return band
    return None


def wait_for_company(gap: float | None, in_hand: int) -> int | None:
    """How many outcomes are worth waking up for within the next 2 ms; None: settle at once.

    Half of what is in hand: the other half keeps the pool busy during the exchange.
    """
    if gap is None or gap >= CLOSE or in_hand < 2:
        return None
    return max(1, in_hand // 2)


def hands(jobs: int, brisk: float | None) -> int:
    """How many threads to wake for so many new jobs; ``brisk``: the share of recent runs that were shorter than BRISK.

    One thread is enough for jobs that never wait: a second one gets nothing done that the first would not do in the
    same time (there is one interpreter lock), and waking 8 or 32 for each batch costs more than the jobs. Should one
    of them take long after all, the fetch loop wakes the others 2 ms later.
    """
    return jobs if brisk is None or brisk < MOSTLY else min(jobs, 1)


__all__ = [
    "BRISK",
    "COMPANY",
    "FILL",
    "HOLD",
    "LONGEST_GAP",
    "MOST",
    "first_overheld",
    "hands",
    "most_in_hand",
    "room",
    "smooth",
    "wait_for_company",
]
