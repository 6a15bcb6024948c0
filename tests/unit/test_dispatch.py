"""How many jobs a child process is sent, as numbers."""

from __future__ import annotations

import pytest

from taskmq.worker.dispatch import BATCH, room


@pytest.mark.parametrize(("flying", "sent"), [(0, 1), (1, 0), (5, 0)])
@pytest.mark.parametrize(
    ("run_time", "elapsed", "distrust"),
    [(None, None, False), (0.011, None, False), (0.0001, 1.0, False), (0.0001, None, True)],
    ids=["no run time known", "long tasks", "a long one runs", "taken back"],
)
def test_a_child_has_one_job_when_more_would_wait(
    run_time: float | None, elapsed: float | None, distrust: bool, flying: int, sent: int
) -> None:
    """Without a forecast, or by one longer than 10 ms, or after a wrong one, a child gets a job when it has none."""
    assert room(BATCH, flying, run_time, elapsed, distrust) == sent


@pytest.mark.parametrize(("flying", "sent"), [(0, 10), (10, 10), (11, 0)])
def test_a_child_has_two_batches_of_10_ms(flying: int, sent: int) -> None:
    """While it works on one batch by the forecast, the next is sent."""
    assert room(BATCH, flying, 0.001, 0.0005) == sent


def test_a_batch_is_bounded() -> None:
    """However short the tasks are, a batch has at most BATCH."""
    assert room(1000, 0, 0.0, None) == BATCH


@pytest.mark.parametrize("run_time", [None, 0.0001])
def test_a_child_gets_no_more_than_it_may_still_run(run_time: float | None) -> None:
    """max_tasks_per_child bounds what is sent, not only what has run."""
    assert room(1, 0, run_time, None) == 1
    assert room(0, 0, run_time, None) == 0
