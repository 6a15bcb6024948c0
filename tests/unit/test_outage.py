"""An outage: growing pauses, one warning, one word at its end."""

from __future__ import annotations

import logging

import pytest

from taskmq.worker.outage import Outage, pause


def test_pauses_double_up_to_the_longest_and_vary_by_half() -> None:
    """After n failures the pause is between half and all of first * 2**(n-1), and of the longest at most."""
    for failures, most in [(1, 0.05), (2, 0.1), (5, 0.8), (7, 2.0), (10_000, 2.0)]:
        pauses = [pause(failures, 0.05, 2.0) for _ in range(200)]
        assert most / 2 <= min(pauses) < max(pauses) <= most


def test_the_caller_may_bound_the_pause() -> None:
    """A lease that ends soon does not wait for the pause that the failures would bring."""
    outage = Outage("the store", 1.0, 1.0)
    assert outage.failed(OSError(), at_most=0.1) == 0.1


def test_an_outage_warns_once_and_tells_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first failure is a warning, the others are for debugging; the end says how many there were, once."""
    caplog.set_level(logging.DEBUG, "taskmq.worker")
    outage = Outage("the store", 0.05, 2.0)
    for _ in range(2):
        outage.over()
        outage.failed(OSError("gone"), "3 outcomes kept")
        outage.failed(OSError("gone"))
        outage.over()
        outage.over()
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.DEBUG, logging.INFO] * 2
    first, second, end = caplog.messages[:3]
    assert first.startswith("the store fails (gone); 3 outcomes kept, next try in 0.0")
    assert second.startswith("the store fails (gone); next try in 0.")
    assert end == "the store answers again after 2 failed tries"
