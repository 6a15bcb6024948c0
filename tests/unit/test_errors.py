from __future__ import annotations

import re

import pytest

import taskmq
from taskmq import errors


def tree() -> dict[str, type[Exception]]:
    return {name: value for name, value in vars(errors).items() if isinstance(value, type)}


def test_every_error_is_a_taskmq_error() -> None:
    """One ``except TaskMQError`` catches them all."""
    assert all(issubclass(error, taskmq.TaskMQError) for error in tree().values())


def test_the_drawn_tree_is_the_real_one() -> None:
    """The tree at the top of the module names every error, and nothing else."""
    drawn = set(re.findall(r"^[│ ]*(?:[├└]── )?([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)) - {"Every"}
    assert drawn == set(tree())


def test_every_error_is_public() -> None:
    """Whatever may be raised can be named in an except clause."""
    assert set(tree()) <= set(taskmq.__all__)


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (taskmq.InvalidArgument, ValueError),
        (taskmq.PayloadTooLarge, taskmq.InvalidArgument),
        (taskmq.ResultTimeout, TimeoutError),
        (taskmq.TaskNotFound, LookupError),
        (taskmq.TransportUnavailable, taskmq.TransportError),
        (taskmq.OutcomeUnknown, taskmq.TransportError),
        (taskmq.StoreFull, taskmq.TransportError),
    ],
)
def test_errors_that_python_has_a_word_for_are_that_too(error: type[Exception], base: type[Exception]) -> None:
    """A caller who knows only Python's errors, or only the family, catches them as well."""
    assert issubclass(error, base)


def test_retryable_says_whether_to_try_again() -> None:
    """Only what may go away by itself is retryable."""
    retryable = {name for name, error in tree().items() if getattr(error, "retryable", False)}
    assert retryable == {"QueueFull", "ResultTimeout", "TransportUnavailable", "OutcomeUnknown", "StoreFull"}


def test_errors_carry_their_facts_as_attributes() -> None:
    """Nobody needs to take a message apart."""
    assert taskmq.PayloadTooLarge("x", size=3, limit=2).size == 3
    assert taskmq.IdempotencyConflict("x", key="k", task_id="t").task_id == "t"
    failed = taskmq.TaskFailed("x", task_id="t", state="FAILED", reason="failed", error="ValueError: x")
    assert (failed.state, failed.reason, failed.error) == ("FAILED", "failed", "ValueError: x")
