"""How much a worker may hold, as numbers."""

from __future__ import annotations

import pytest

from taskmq.worker import prefetch


def test_nothing_is_prefetched_before_a_run_time_is_known() -> None:
    """A worker that knows no run time yet holds no more than it can run."""
    assert prefetch.most_in_hand(8, None, None, None) == 8


@pytest.mark.parametrize(
    ("run_time", "held"),
    [(0.010, 8), (0.005, 16), (0.00125, 64), (0.0001, 256), (0.0, 256), (0.0051, 8), (0.0101, 0), (0.1, 0), (60.0, 0)],
)
def test_prefetch_is_half_of_what_the_pool_may_hold(run_time: float, held: int) -> None:
    """Each of eight threads holds as many whole tasks as it starts in 10 ms; never more than 256 in all."""
    assert prefetch.most_in_hand(8, None, run_time, None) == 8 + held


def test_long_running_tasks_stop_the_prefetch_although_recent_ones_were_short() -> None:
    """The forecast believes the tasks that run now more than the ones that ran before."""
    assert prefetch.most_in_hand(8, None, 0.0001, 1.0) == 8


def test_after_a_hand_back_nothing_is_prefetched() -> None:
    """A forecast that has just been proved wrong is not used again."""
    assert prefetch.most_in_hand(8, None, 0.0001, None, distrust=True) == 8


@pytest.mark.parametrize("distrust", [False, True])
def test_a_fixed_prefetch_is_that_number_whatever_happens(distrust: bool) -> None:
    """prefetch=N holds N beyond the running ones, for tasks of any length."""
    assert prefetch.most_in_hand(4, 16, 60.0, 60.0, distrust) == 20


def test_room_is_what_the_cap_leaves() -> None:
    """Only what is not in hand yet is reserved."""
    assert prefetch.room(20, 12, 0) == 8
    assert prefetch.room(20, 20, 0) == 0


def test_a_freed_thread_may_always_reserve() -> None:
    """A cap that has collapsed below what is held does not stop a freed thread from reserving."""
    assert prefetch.room(8, 200, 2) == 2


def test_the_band_of_an_overheld_job_goes_back_with_all_below() -> None:
    """What is handed back never leaves a less urgent job behind that would overtake it."""
    assert prefetch.first_overheld([None, 0.99, 0.97, 0.995], 1.0) == 2
    assert prefetch.first_overheld([0.99, None, 0.985], 1.0) is None
    assert prefetch.first_overheld([], 1.0) is None


def test_lone_outcomes_are_settled_at_once() -> None:
    """Outcomes that come 1 ms apart or more do not wait for company."""
    assert prefetch.wait_for_company(None, 100) is None
    assert prefetch.wait_for_company(0.001, 100) is None
    assert prefetch.wait_for_company(0.0001, 1) is None


def test_close_outcomes_wait_for_half_of_what_is_in_hand() -> None:
    """Outcomes that come close together are settled when half of what is in hand has ended."""
    assert prefetch.wait_for_company(0.0001, 264) == 132
    assert prefetch.wait_for_company(0.0001, 3) == 1


def test_smooth_follows_a_change_within_some_tens_of_values() -> None:
    """The average starts with the first value and has forgotten it after 50 others."""
    assert prefetch.smooth(None, 5.0, 3) == 5.0
    assert prefetch.smooth(1.0, 2.0, 1) == pytest.approx(1.1)
    assert prefetch.smooth(1.0, 2.0, 50) == pytest.approx(2.0, abs=0.01)


def test_smoothing_a_batch_is_smoothing_its_values_one_by_one() -> None:
    """It does not matter in how many batches equal values come."""
    one_by_one: float | None = 1.0
    for _ in range(7):
        one_by_one = prefetch.smooth(one_by_one, 3.0, 1)
    assert one_by_one == pytest.approx(prefetch.smooth(1.0, 3.0, 7))


def test_one_thread_is_woken_for_brisk_jobs_and_all_for_others() -> None:
    """Jobs too short to wait for anything wake one thread; others as many as there are jobs."""
    assert prefetch.hands(100, 0.99) == 1
    assert prefetch.hands(100, 0.5) == 100
    assert prefetch.hands(100, None) == 100
    assert prefetch.hands(0, 0.99) == 0
