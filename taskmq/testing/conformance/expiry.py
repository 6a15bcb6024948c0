"""``expires`` (start by) and ``deadline`` (finish by) (§2)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.state import TaskState
from taskmq.testing.conformance.kit import LEASE, Kit, names
from taskmq.transport.base import Maintain

EXPIRED = TaskState.EXPIRED


def expires_ends_a_task_that_was_not_started(kit: Kit) -> None:
    """A task not started by then becomes EXPIRED and never runs (§2)."""
    kit.publish("A", expires=10)
    kit.advance(10)
    assert kit.claim() == []
    info = kit.info("A")
    assert (info.state, info.attempt, info.epoch) == (EXPIRED, 0, 0)
    assert info.finished_at == kit.now


def expires_lets_a_task_run_before(kit: Kit) -> None:
    """Until then the task is claimed like any other (§2)."""
    kit.publish("A", expires=10)
    kit.advance(9)
    assert kit.claim() == ["A"]
    kit.ack("A")
    kit.advance(5)
    kit.maintain()
    assert kit.state("A") is TaskState.SUCCEEDED


def expires_spares_what_was_started_in_time(kit: Kit) -> None:
    """What was started in time may run beyond ``expires``: finishing is the deadline's business (§2)."""
    kit.publish("A", expires=10)
    kit.claim()
    kit.start("A")
    kit.advance(20)
    kit.maintain()
    assert kit.state("A") is TaskState.RUNNING
    kit.ack("A")
    assert kit.state("A") is TaskState.SUCCEEDED


def expires_ends_what_is_handed_back_too_late(kit: Kit) -> None:
    """A worker that holds it unstarted yields it; the next claim expires it (§2)."""
    kit.publish("A", expires=10)
    kit.claim()
    kit.advance(10)
    kit.hand_back("A")
    assert kit.claim() == []
    assert kit.state("A") is EXPIRED


def expires_is_noticed_by_maintenance(kit: Kit) -> None:
    """Nobody needs to claim: housekeeping expires, too (§2; library.md, maintain)."""
    kit.publish("A", expires=10)
    kit.advance(10)
    kit.maintain()
    assert kit.state("A") is EXPIRED


def expires_ends_a_scheduled_task(kit: Kit) -> None:
    """A task that is due only after it expires never runs (§2)."""
    kit.publish("A", delay=20, expires=10)
    kit.advance(30)
    assert kit.claim() == []
    assert kit.state("A") is EXPIRED


def expires_spares_a_retry_of_what_was_started_in_time(kit: Kit) -> None:
    """A task that was started by then has met ``expires``: its later attempts run (§2)."""
    kit.publish("A", expires=10)
    kit.claim()
    kit.start("A")
    kit.retry("A", delay=20)
    kit.advance(20)
    assert kit.claim() == ["A"]


def expires_takes_no_turn(kit: Kit) -> None:
    """A claim takes no turn for the expired tasks that it skips (§11)."""
    kit.publish(*names("late ", 10), queue="a", expires=10)
    kit.publish(*names("a ", 10), queue="a")
    kit.publish(*names("b ", 10), queue="b")
    kit.advance(10)
    assert kit.claim_one_by_one(4, "a", "b") == ["a 1", "b 1", "a 2", "b 2"]
    assert kit.stats("a").served == 2


def expires_takes_no_turn_of_a_partition(kit: Kit) -> None:
    """A partition whose head expired competes with its next task (§11)."""
    kit.publish("late", partition="!x", expires=10)
    kit.publish("x", partition="!x")
    kit.publish("y", partition="y")
    kit.advance(10)
    assert sorted(kit.claim(2)) == ["x", "y"]


def expires_of_a_crowd_hides_no_work(kit: Kit) -> None:
    """However many have expired, a worker that asks while the claim says ``more`` finds what lives (§11)."""
    kit.publish(*names("late ", 900), expires=10)
    kit.publish("A")
    kit.advance(10)
    assert kit.claim() == ["A"]
    assert kit.stats().ready == 0


# ── deadline ──


def deadline_ends_a_task_that_waits(kit: Kit) -> None:
    """A task that waits beyond its deadline is EXPIRED and never runs (§2)."""
    kit.publish("A", deadline=10)
    kit.advance(10)
    assert (kit.claim(), kit.state("A")) == ([], EXPIRED)


def deadline_ends_a_task_when_its_worker_reports_late(kit: Kit) -> None:
    """Not finished by then: EXPIRED when the worker reports anything but success (§2)."""
    reports: list[Callable[[str], None]] = [kit.retry, lambda name: kit.defer(name, 0), kit.hand_back, kit.die]
    for number, report in enumerate(reports):
        name = f"A{number}"
        kit.publish(name, deadline=10)
        kit.claim()
        kit.start(name)
        kit.advance(10)
        assert kit.state(name) is TaskState.RUNNING
        report(name)
        assert kit.state(name) is EXPIRED


def deadline_ends_a_task_when_its_lease_ends(kit: Kit) -> None:
    """Not finished by then: EXPIRED when the lease ends (§2)."""
    kit.publish("A", deadline=10)
    kit.claim()
    kit.advance(LEASE)
    assert (kit.claim(), kit.state("A")) == ([], EXPIRED)


def deadline_gives_way_to_an_ack(kit: Kit) -> None:
    """An ack that comes before anything else has ended the task wins (§2)."""
    kit.publish("A", deadline=10)
    kit.claim()
    kit.advance(15)
    kit.ack("A", result=1)
    assert (kit.state("A"), kit.info("A").result) == (TaskState.SUCCEEDED, 1)


def deadline_allows_retries_before(kit: Kit) -> None:
    """Before the deadline a retry is a retry; one that falls due after it never runs (§2)."""
    kit.publish("A", deadline=10)
    kit.claim()
    kit.retry("A", delay=5)
    kit.advance(5)
    assert kit.claim() == ["A"]
    kit.retry("A", delay=60)
    kit.advance(60)
    assert (kit.claim(), kit.state("A")) == ([], EXPIRED)


def deadline_of_a_head_lets_its_partition_go_on(kit: Kit) -> None:
    """When the head of an ordered partition expires, the next one goes (§2, §6)."""
    kit.publish("A", partition="!x", deadline=10)
    kit.publish("B", partition="!x")
    kit.claim()
    kit.advance(10)
    kit.retry("A")
    assert kit.state("A") is EXPIRED
    assert kit.claim() == ["B"]


def expires_ends_more_partitions_than_a_claim_takes(kit: Kit) -> None:
    """However many partitions end because their tasks came too late, the living ones are found (§11, claims)."""
    kit.publish("plain", "plain2")
    for number in range(12):
        kit.publish(f"late{number}", partition=f"!late{number}", expires=5)
    kit.publish("p0", partition="!p0", priority=1)
    kit.advance(5)
    assert kit.claim(1) == ["p0"]


def maintain_tells_of_more_that_expired(kit: Kit) -> None:
    """One bounded round ends as many late tasks as it may, and says so (base.py, Maintain)."""
    kit.publish(*names("late", 5), expires=1)
    kit.advance(2)
    first = kit.store.maintain(Maintain(limit=3))
    assert first.more
    assert sum(kit.state(name) is TaskState.EXPIRED for name in names("late", 5)) == 3
    while kit.store.maintain(Maintain(limit=3)).more:
        pass
    assert all(kit.state(name) is TaskState.EXPIRED for name in names("late", 5))
