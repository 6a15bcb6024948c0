"""Partitions: parallel and ordered, and what a retry, a defer and a death do to them (§6). Turns are in turns.py."""

from __future__ import annotations

from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit, names


def _fill(kit: Kit, count: int, *codes: str) -> None:
    for code in codes:
        kit.publish(*names(f"{code} ", count), partition=code)


def reserve_keeps_priority_then_publish_order_in_a_partition(kit: Kit) -> None:
    """Inside a partition the queue's order holds: priority, then publish order (§6)."""
    for code in ("x", "!x"):
        for name, priority in (("A", 0), ("B", 5), ("C", 0), ("D", 5)):
            kit.publish(f"{code} {name}", queue=code.strip("!") + str(len(code)), partition=code, priority=priority)
    assert kit.work_off("x1") == ["x B", "x D", "x A", "x C"]
    assert kit.work_off("x2") == ["!x B", "!x D", "!x A", "!x C"]


def reserve_takes_any_number_of_a_parallel_partition(kit: Kit) -> None:
    """Any number of a parallel partition's tasks run at once (§6)."""
    _fill(kit, 20, "x")
    assert kit.claim(20) == names("x ", 20)


def reserve_takes_one_of_an_ordered_partition(kit: Kit) -> None:
    """Nothing of an ordered partition starts while an earlier task of it is unsettled (§6)."""
    _fill(kit, 3, "!x")
    for number in (1, 2, 3):
        assert kit.claim() == [f"!x {number}"]
        assert kit.claim() == []
        kit.start(f"!x {number}")
        assert kit.claim() == []
        kit.ack(f"!x {number}")


def reserve_takes_several_ordered_partitions_at_once(kit: Kit) -> None:
    """Ordered partitions do not wait for one another (§6)."""
    _fill(kit, 2, "!x", "!y", "!z")
    assert sorted(kit.claim_one_by_one(9)) == ["!x 1", "!y 1", "!z 1"]


def reserve_keeps_ordered_and_parallel_of_one_name_apart(kit: Kit) -> None:
    """``!x`` and ``x`` are two partitions (§6)."""
    _fill(kit, 2, "!x", "x")
    assert sorted(kit.claim_one_by_one(9)) == ["!x 1", "x 1", "x 2"]


def reserve_keeps_partitions_of_two_queues_apart(kit: Kit) -> None:
    """A partition is a flow inside one queue (§1)."""
    kit.publish("A", queue="one", partition="!x")
    kit.publish("B", queue="two", partition="!x")
    assert kit.claim_one_by_one(2, "one", "two") == ["A", "B"]


def reserve_compares_codes_as_bytes(kit: Kit) -> None:
    """Codes are compared as bytes: case, blanks and the form of an accent make another partition (§8, names)."""
    codes = [
        "!x",
        "!X",
        "!x ",
        "! x",
        "!\u00e9",
        "!e\u0301",
        "!%",
        "!_",
        "!x:y",
        "!{x}",
        "!" + "ż" * 127,
        "!" + "z" * 254,
    ]
    for number, code in enumerate(codes):
        kit.publish(f"T{number}", partition=code)
    assert sorted(kit.claim_one_by_one(99)) == sorted(f"T{number}" for number in range(len(codes)))
    assert [info.code for info in kit.store.partitions("q")] == sorted(codes, key=str.encode)


# ── retry, defer, dead ──


def retry_blocks_an_ordered_partition_in_place(kit: Kit) -> None:
    """A fails twice, then B, C: executed are A, A, A, B, C, each after the delay (§6)."""
    kit.publish("A", "B", "C", partition="!x")
    for _ in range(2):
        assert kit.claim() == ["A"]
        kit.retry("A", delay=10)
        kit.advance(9)
        assert kit.claim() == []
        kit.advance(1)
    assert kit.work_off() == ["A", "B", "C"]


def retry_without_delay_keeps_an_ordered_partition_in_order(kit: Kit) -> None:
    """A retry without delay is next in its ordered partition, before what follows it (§6)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.retry("A")
    assert kit.work_off() == ["A", "B"]


def retry_of_an_ordered_partition_lets_the_others_go_on(kit: Kit) -> None:
    """While a partition is blocked, workers serve the others (§6)."""
    _fill(kit, 2, "!x", "!y", "z")
    assert kit.claim() == ["!x 1"]
    kit.retry("!x 1", delay=10)
    assert sorted(kit.work_off()) == ["!y 1", "!y 2", "z 1", "z 2"]


def retry_of_an_ordered_partition_yields_to_more_urgent_tasks(kit: Kit) -> None:
    """A more urgent task published meanwhile goes before the retried one, once the delay is over (§6)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.retry("A", delay=10)
    kit.publish("urgent", partition="!x", priority=5)
    assert kit.claim() == []
    kit.advance(10)
    assert kit.work_off() == ["urgent", "A", "B"]


def publish_overtakes_a_ready_head_by_priority(kit: Kit) -> None:
    """A more urgent task goes before a ready head that nobody has claimed (§6)."""
    kit.publish("A", "B", partition="!x")
    kit.publish("urgent", partition="!x", priority=5)
    assert kit.work_off() == ["urgent", "A", "B"]


def publish_does_not_overtake_a_claimed_head(kit: Kit) -> None:
    """Even a more urgent task waits while an earlier one of its ordered partition is unsettled (§6)."""
    kit.publish("A", partition="!x")
    kit.claim()
    kit.publish("urgent", partition="!x", priority=9)
    assert kit.claim() == []
    kit.ack("A")
    assert kit.claim() == ["urgent"]


def defer_blocks_an_ordered_partition_in_place(kit: Kit) -> None:
    """A deferred task blocks its ordered partition like a retry, and consumes no attempt (§6, §2)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.defer("A", delay=10)
    kit.advance(9)
    assert kit.claim() == []
    kit.advance(1)
    assert kit.claim() == ["A"]
    assert kit.delivery("A").attempt == 1


def publish_of_a_delayed_task_blocks_no_partition(kit: Kit) -> None:
    """A task still waiting for its first due time is not in line and blocks nobody (§4)."""
    kit.publish("A", partition="!x", delay=10)
    kit.publish("B", "C", partition="!x")
    assert kit.claim() == ["B"]
    kit.ack("B")
    kit.advance(10)
    assert kit.work_off() == ["A", "C"]


def publish_of_a_delayed_task_makes_no_partition(kit: Kit) -> None:
    """Tasks not yet due for the first time keep no partition (§11)."""
    _fill(kit, 1, "x")
    kit.publish("later", partition="x", delay=10)
    kit.publish("elsewhere", partition="!y", delay=10)
    kit.work_off()
    assert kit.store.partitions("q") == []
    kit.advance(10)
    assert sorted(kit.claim(2)) == ["elsewhere", "later"]


def retry_can_block_a_parallel_partition(kit: Kit) -> None:
    """``RetryLater(delay, partition=True)`` blocks a parallel partition as a whole until then (§6)."""
    _fill(kit, 3, "x")
    _fill(kit, 1, "y")
    kit.claim()
    kit.retry("x 1", delay=10, partition=True)
    assert kit.work_off() == ["y 1"]
    kit.advance(10)
    assert kit.work_off() == ["x 1", "x 2", "x 3"]


def defer_can_block_a_parallel_partition(kit: Kit) -> None:
    """``Defer(delay, partition=True)`` does the same without an attempt (§6)."""
    _fill(kit, 2, "x")
    kit.claim()
    kit.defer("x 1", delay=10, partition=True)
    assert kit.claim() == []
    kit.advance(10)
    assert kit.claim(2) == ["x 1", "x 2"]
    assert kit.delivery("x 1").attempt == 1


def retry_alone_blocks_no_parallel_partition(kit: Kit) -> None:
    """A retry in a parallel partition delays its own task only (§6)."""
    _fill(kit, 3, "x")
    kit.claim()
    kit.retry("x 1", delay=10)
    assert kit.work_off() == ["x 2", "x 3"]


def die_lets_an_ordered_partition_continue(kit: Kit) -> None:
    """By default the next task goes on when one of an ordered partition is dead (§6)."""
    _fill(kit, 2, "!x")
    kit.claim()
    kit.die("!x 1")
    assert (kit.state("!x 1"), kit.claim()) == (TaskState.FAILED, ["!x 2"])


def lost_head_of_an_ordered_partition_comes_first_again(kit: Kit) -> None:
    """When a worker dies, its ordered partition goes on with the same task (§6, §2)."""
    _fill(kit, 2, "!x")
    kit.claim()
    kit.lose_leases()
    assert kit.work_off() == ["!x 1", "!x 2"]


def ack_of_the_last_task_leaves_no_partition(kit: Kit) -> None:
    """Empty partitions leave nothing behind (§6)."""
    _fill(kit, 1, "!x", "y")
    assert len(kit.store.partitions("q")) == 2
    kit.work_off()
    assert kit.store.partitions("q") == []
    assert kit.stats().partitions == 0
