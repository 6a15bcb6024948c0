"""Cancel: at once where a task waits, by request where it runs (§2)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.clock import SECOND
from taskmq.outcome import Dead, Defer, Retry, Yield
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit

CANCELLED = TaskState.CANCELLED


def cancel_ends_a_waiting_task_at_once(kit: Kit) -> None:
    """QUEUED, SCHEDULED and RETRYING tasks are CANCELLED at once and never run (§2)."""
    kit.publish("retrying")
    kit.claim()
    kit.retry("retrying", delay=10)
    kit.publish("queued")
    kit.publish("scheduled", delay=10)
    assert kit.cancel("queued", "scheduled", "retrying") == [CANCELLED] * 3
    assert kit.states("queued", "scheduled", "retrying") == [CANCELLED] * 3
    assert kit.info("queued").finished_at == kit.now
    kit.advance(10)
    assert kit.claim(9) == []


def cancel_answers_in_order_and_for_the_unknown(kit: Kit) -> None:
    """The answer is each task's state now, None for what is not there (base.py)."""
    kit.publish("done", "running")
    kit.claim()
    kit.ack("done")
    kit.claim()
    kit.publish("queued")
    kit.message("unknown")
    answer = kit.cancel("unknown", "done", "queued", "running")
    assert answer == [None, TaskState.SUCCEEDED, CANCELLED, TaskState.RUNNING]


def cancel_changes_no_terminal_state(kit: Kit) -> None:
    """A terminal state never changes (§2)."""
    kit.publish("done", "dead")
    kit.publish("late", expires=1, delay=5)
    kit.claim(2)
    kit.ack("done")
    kit.die("dead")
    kit.advance(1)
    kit.maintain()
    ends = [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.EXPIRED]
    assert kit.cancel("done", "dead", "late") == ends
    assert kit.states("done", "dead", "late") == ends


def cancel_asks_a_running_task_to_stop(kit: Kit) -> None:
    """A RUNNING task gets a request, which its worker sees at its next heartbeat (§2)."""
    kit.publish("A", "B")
    kit.claim(2)
    assert (kit.renew("A").cancel, kit.info("A").cancel_requested) == (False, False)
    assert kit.cancel("A") == [TaskState.RUNNING]
    assert (kit.state("A"), kit.info("A").cancel_requested) == (TaskState.RUNNING, True)
    assert (kit.renew("A").cancel, kit.renew("B").cancel) == (True, False)
    assert kit.renew("A").cancel


def cancel_gives_way_to_an_ack(kit: Kit) -> None:
    """With a cancel request pending an ack still succeeds (§2)."""
    kit.publish("A")
    kit.claim()
    kit.cancel("A")
    kit.ack("A", result=1)
    assert (kit.state("A"), kit.info("A").result) == (TaskState.SUCCEEDED, 1)


def cancel_decides_every_other_outcome(kit: Kit) -> None:
    """With a cancel request pending every outcome but ack ends CANCELLED (§2)."""
    for outcome in (Retry(0), Retry(10), Defer(0), Yield(), Dead("failed")):
        kit.publish("A")
        kit.claim()
        kit.start("A")
        kit.cancel("A")
        assert kit.settle("A", outcome)
        assert kit.state("A") is CANCELLED, outcome
        kit.advance(10)
        assert kit.claim() == []


def cancel_decides_an_ended_lease(kit: Kit) -> None:
    """With a cancel request pending the end of the lease ends CANCELLED, blamed or not (§2)."""
    kit.publish("A", "B")
    kit.claim(2)
    kit.cancel("A", "B")
    kit.lose_leases()
    assert kit.states("A", "B") == [CANCELLED, CANCELLED]
    assert kit.claim(9) == []


def cancel_request_ends_with_its_task(kit: Kit) -> None:
    """A request concerns its own task only: the next one of the same worker knows nothing of it (§2)."""
    kit.publish("A", "B")
    kit.claim()
    kit.cancel("A")
    kit.hand_back("A")
    assert kit.claim() == ["B"]
    assert not kit.renew("B").cancel


def cancel_of_a_head_lets_its_partition_go_on(kit: Kit) -> None:
    """The next task of an ordered partition goes when its waiting head is cancelled (§6)."""
    kit.publish("A", "B", partition="!x")
    kit.cancel("A")
    assert kit.claim() == ["B"]


def cancel_of_a_running_head_lets_its_partition_go_on(kit: Kit) -> None:
    """A cancelled running head frees its ordered partition when it comes back, whatever it came back with (§6)."""
    ends: list[Callable[[str], None]] = [kit.retry, kit.die, kit.hand_back]
    kit.configure(on_dead="hold")
    for number, end in enumerate(ends):
        kit.publish(f"A{number}", f"B{number}", partition="!x")
        assert kit.claim() == [f"A{number}"]
        kit.cancel(f"A{number}")
        end(f"A{number}")
        assert kit.claim() == [f"B{number}"]
        kit.ack(f"B{number}")


def cancel_of_the_middle_keeps_the_order(kit: Kit) -> None:
    """Cancelling inside an ordered partition leaves the others in order (§6)."""
    kit.publish("A", "B", "C", partition="!x")
    kit.cancel("B")
    assert kit.work_off() == ["A", "C"]


def cancel_leaves_no_partition_behind(kit: Kit) -> None:
    """A partition whose last task was cancelled is gone (§6)."""
    kit.publish("A", partition="!x")
    kit.publish("B", partition="y", delay=10)
    kit.cancel("A", "B")
    assert kit.store.partitions("q") == []


def cancel_of_a_blocked_head_leaves_no_partition_behind(kit: Kit) -> None:
    """When the delay of a cancelled retry is over, nothing is left of its partition (§6)."""
    kit.publish("A", partition="!x")
    kit.claim()
    kit.retry("A", delay=10)
    assert kit.cancel("A") == [CANCELLED]
    kit.advance(10)
    kit.maintain()
    assert kit.store.partitions("q") == []


def cancel_takes_the_same_task_twice(kit: Kit) -> None:
    """Cancelling again changes nothing (§2)."""
    kit.publish("A")
    assert kit.cancel("A") == [CANCELLED]
    before = kit.info("A")
    kit.advance(1)
    assert kit.cancel("A") == [CANCELLED]
    assert kit.info("A") == before


def cancel_of_the_head_that_blocks_frees_its_partition(kit: Kit) -> None:
    """What an ordered partition waits for is gone, so it waits no more (§6)."""
    kit.publish("A", "B", partition="!x")
    assert kit.claim() == ["A"]
    kit.settle("A", Retry(300 * SECOND))
    assert kit.claim(9) == []
    kit.cancel("A")
    assert kit.claim(9) == ["B"]
