"""The retry budget under lost leases, and poison: what kills its workers cannot go round for ever (§2)."""

from __future__ import annotations

from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit, names


def _lose_alone(kit: Kit, name: str, times: int) -> None:
    for _ in range(times):
        assert kit.claim() == [name]
        kit.lose_leases()


def lost_leases_consume_the_retry_budget(kit: Kit) -> None:
    """The retry budget binds: blamed expiries are attempts, and after the last one the task is dead (§2)."""
    kit.publish("A", max_attempts=3)
    _lose_alone(kit, "A", 2)
    assert kit.state("A") is TaskState.QUEUED
    _lose_alone(kit, "A", 1)
    info = kit.info("A")
    assert (info.state, info.reason, info.attempt) == (TaskState.FAILED, "max_attempts", 3)
    assert kit.claim() == []


def lost_leases_and_retries_share_the_budget(kit: Kit) -> None:
    """Retries and blamed expiries count together (§2)."""
    kit.publish("A", max_attempts=3)
    for _ in range(2):
        kit.claim()
        kit.retry("A")
    _lose_alone(kit, "A", 1)
    assert (kit.state("A"), kit.info("A").reason) == (TaskState.FAILED, "max_attempts")


def lost_only_attempt_is_never_repeated(kit: Kit) -> None:
    """``max_attempts=1`` means never twice, not even after a crash, once the task is marked started (§2)."""
    kit.publish("before", "A", max_attempts=1)
    kit.claim(2)
    kit.start("A")
    kit.lose_leases()
    assert kit.state("A") is TaskState.FAILED
    assert "A" not in kit.claim(9)


def lost_task_that_never_started_keeps_its_only_attempt(kit: Kit) -> None:
    """A task with one attempt that was claimed beside others and not started runs later (§2)."""
    kit.publish("first", "A", max_attempts=1)
    kit.claim(2)
    kit.start("first")
    kit.lose_leases()
    assert kit.claim(9) == ["A"]


def ten_blamed_expiries_are_poison(kit: Kit) -> None:
    """For budgets above 10, ten blamed expiries make a task dead with the reason "poison" (§2)."""
    kit.publish("A", max_attempts=50)
    _lose_alone(kit, "A", 9)
    assert kit.state("A") is TaskState.QUEUED
    _lose_alone(kit, "A", 1)
    assert (kit.state("A"), kit.info("A").reason) == (TaskState.FAILED, "poison")


def ten_expiries_within_a_budget_of_ten_are_the_budget(kit: Kit) -> None:
    """A budget of ten binds before poison does (§2)."""
    kit.publish("A", max_attempts=10)
    _lose_alone(kit, "A", 10)
    assert (kit.state("A"), kit.info("A").reason) == (TaskState.FAILED, "max_attempts")


def hundred_expiries_of_any_kind_are_poison(kit: Kit) -> None:
    """100 expiries make a task dead even if it was never blamed (§2)."""
    kit.publish("A", max_attempts=50)
    for number in range(100):
        assert kit.state("A") is TaskState.QUEUED
        first = f"first {number}"
        kit.publish(first, priority=9)
        assert kit.claim(2) == [first, "A"]
        kit.cancel(first)
        kit.lose_leases()
    info = kit.info("A")
    assert (info.state, info.reason, info.attempt) == (TaskState.FAILED, "poison", 0)


def hand_backs_are_never_poison(kit: Kit) -> None:
    """Hand-backs never count: neither as attempts nor as expiries (§2)."""
    kit.publish("A", max_attempts=1)
    for _ in range(120):
        kit.claim()
        kit.hand_back("A")
    assert (kit.state("A"), kit.info("A").attempt) == (TaskState.QUEUED, 0)


def rest_of_a_run_is_never_poison(kit: Kit) -> None:
    """Going back as the rest of a run never counts (§2)."""
    kit.publish("A", max_attempts=1000, partition="!x")
    kit.publish("B", max_attempts=1, partition="!x")
    for _ in range(110):
        assert kit.claim(2) == ["A", "B"]
        kit.retry("A")
    assert (kit.state("B"), kit.info("B").attempt) == (TaskState.QUEUED, 0)


def retries_are_never_poison(kit: Kit) -> None:
    """A task that fails by itself and never loses its lease has its whole budget (§2)."""
    kit.publish("A", max_attempts=300)
    for _ in range(120):
        kit.claim()
        kit.retry("A")
    assert (kit.state("A"), kit.info("A").attempt) == (TaskState.QUEUED, 120)


def poison_spares_its_neighbours(kit: Kit) -> None:
    """A poison task takes nobody along: what was claimed with it ends as usual (§2)."""
    wanted = names("N", 5)
    kit.publish("poison", priority=1, max_attempts=50)
    kit.publish(*wanted, max_attempts=1)
    for _ in range(10):
        kit.claim(6)
        kit.lose_leases()
    assert kit.state("poison") is TaskState.FAILED
    assert kit.work_off() == wanted
