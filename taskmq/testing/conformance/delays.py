"""Delays: what is not due is not in line, and nobody waits for it (§4, §6)."""

from __future__ import annotations

from taskmq.durations import Moment
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import SECOND, Kit, names


def reserve_waits_for_the_due_time(kit: Kit) -> None:
    """A delayed task is SCHEDULED and not claimed before its time, and QUEUED and claimed from then on (§2, §4)."""
    kit.publish("A", delay=10)
    kit.advance(9.999999)
    assert (kit.state("A"), kit.claim()) == (TaskState.SCHEDULED, [])
    kit.advance(0.000001)
    assert (kit.state("A"), kit.claim()) == (TaskState.QUEUED, ["A"])


def reserve_takes_a_time_in_the_past_for_now(kit: Kit) -> None:
    """A start time in the past means now (defaults.md)."""
    kit.publish("A", run_after=Moment(kit.now - 3600 * SECOND, relative=False))
    info = kit.info("A")
    assert (info.state, info.available_at) == (TaskState.QUEUED, kit.now)
    assert kit.claim() == ["A"]


def reserve_passes_over_what_is_not_due(kit: Kit) -> None:
    """An urgent task that is not due lets the others go first (§4, third row of the table)."""
    kit.publish("urgent", priority=9, delay=3600)
    kit.publish("ready")
    assert kit.claim(9) == ["ready"]


def reserve_puts_a_due_task_where_its_seq_says(kit: Kit) -> None:
    """In a strict queue a task that became due stands where it was published, not at the end (§4)."""
    kit.publish("A", delay=5)
    kit.publish("B")
    kit.publish("C", delay=3)
    kit.advance(5)
    assert kit.claim_one_by_one(9) == ["A", "B", "C"]


def reserve_does_not_depend_on_when_a_promoter_ran(kit: Kit) -> None:
    """A queue that is asked every second and one that is asked at the end give the same answer (§4)."""
    for queue in ("tended", "left"):
        kit.publish(f"{queue} A", queue=queue, delay=5)
        kit.publish(f"{queue} B", queue=queue, delay=2, priority=1)
        kit.publish(f"{queue} C", queue=queue)
        kit.store.pause_queue(queue, True)
    for _ in range(6):
        kit.advance(1)
        assert kit.claim(1, "tended") == []
    for queue in ("tended", "left"):
        kit.store.pause_queue(queue, False)
        assert kit.claim(9, queue) == [f"{queue} B", f"{queue} A", f"{queue} C"]


def reserve_promotes_without_maintenance(kit: Kit) -> None:
    """Every claim first promotes what is due in its queues, so nobody depends on a promoter (§11)."""
    kit.publish("A", "B", delay=1)
    kit.advance(1)
    assert kit.claim(1) == ["A"]
    assert kit.claim(1) == ["B"]


def maintain_promotes_what_is_due(kit: Kit) -> None:
    """Housekeeping promotes and says how much (base.py)."""
    kit.publish("A", "B", delay=1)
    assert kit.maintain().promoted == 0
    kit.advance(1)
    assert kit.maintain().promoted == 2
    assert kit.claim(9) == ["A", "B"]


def reserve_loses_nothing_when_many_fall_due_at_once(kit: Kit) -> None:
    """More tasks than one promotion takes are all claimed in the end, each once (§10.1, §11)."""
    wanted = names("T", 700)
    kit.publish(*wanted, delay=1)
    kit.advance(1)
    kit.maintain()
    assert kit.claim(700) == wanted


def reserve_keeps_delayed_tasks_of_every_queue(kit: Kit) -> None:
    """Claiming one queue neither promotes nor loses what waits in another (§4)."""
    kit.publish("A", queue="one", delay=1)
    kit.publish("B", queue="two", delay=1)
    kit.advance(2)
    assert kit.claim(9, "one") == ["A"]
    assert kit.claim(9, "two") == ["B"]


def reserve_tells_when_the_next_task_falls_due(kit: Kit) -> None:
    """An empty answer says when it is worth asking again (base.py, Reserved)."""
    assert kit.reserve().next_due is None
    kit.publish("late", delay=20)
    kit.publish("soon", delay=10)
    assert kit.reserve().next_due == kit.now + 10 * SECOND


def reserve_tells_when_a_blocked_partition_goes_on(kit: Kit) -> None:
    """A partition that waits for a retry is something to wake up for (base.py, Reserved)."""
    kit.publish("A", partition="!x")
    kit.claim()
    kit.retry("A", delay=7)
    assert kit.reserve().next_due == kit.now + 7 * SECOND


def reserve_tells_when_a_lease_ends(kit: Kit) -> None:
    """A lease that may end is something to wake up for (base.py, Reserved)."""
    kit.publish("A")
    kit.claim(1, lease=12)
    assert kit.reserve().next_due == kit.now + 12 * SECOND
