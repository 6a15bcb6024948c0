"""Operators' hands on partitions and queues (§6, §8; base.py)."""

from __future__ import annotations

from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit


def pause_partition_stops_only_it(kit: Kit) -> None:
    """A paused partition gives nothing, all others go on; resumed, it goes on in order (base.py)."""
    kit.publish("A", "B", partition="!x")
    kit.publish("C", partition="!y")
    kit.publish("D")
    kit.store.pause_partition("q", "!x", True)
    assert sorted(kit.claim(9)) == ["C", "D"]
    kit.ack("C", "D")
    kit.store.pause_partition("q", "!x", False)
    assert kit.work_off() == ["A", "B"]


def pause_partition_holds_for_tasks_to_come(kit: Kit) -> None:
    """A partition can be paused before it has any task, and shows that it is (base.py)."""
    kit.store.pause_partition("q", "x", True)
    info = kit.partition("x")
    assert info is not None
    assert (info.paused, info.waiting) == (True, 0)
    kit.publish("A", partition="x")
    kit.advance(3600)
    kit.maintain()
    assert kit.claim(9) == []
    kit.store.pause_partition("q", "x", False)
    assert kit.claim(9) == ["A"]


def resume_partition_leaves_nothing_behind(kit: Kit) -> None:
    """A resumed partition without tasks is forgotten like any empty one (§6)."""
    kit.store.pause_partition("q", "!x", True)
    kit.store.pause_partition("q", "!x", False)
    kit.store.pause_partition("q", "!y", False)
    assert (kit.partition("!x"), kit.partition("!y"), kit.stats().partitions) == (None, None, 0)


def pause_partition_lets_what_runs_end(kit: Kit) -> None:
    """Tasks in a worker's hands are not touched; a retried one waits with the others (base.py)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.store.pause_partition("q", "!x", True)
    kit.retry("A")
    assert kit.claim(9) == []
    kit.store.pause_partition("q", "!x", False)
    assert kit.work_off() == ["A", "B"]


def release_tries_the_head_again_in_its_place(kit: Kit) -> None:
    """Released, a held partition starts with its dead head again, with a new budget, then goes on in order (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "B", partition="!x", max_attempts=2)
    kit.claim()
    kit.die("A")
    assert kit.store.release_partition("q", "!x")
    assert (kit.state("A"), kit.info("A").attempt, kit.info("A").replays) == (TaskState.QUEUED, 0, 1)
    assert kit.work_off() == ["A", "B"]


def release_without_a_hold_does_nothing(kit: Kit) -> None:
    """Where nothing is held there is nothing to release (base.py)."""
    kit.publish("A", partition="!x")
    assert [kit.store.release_partition("q", code) for code in ("!x", "!unknown")] == [False, False]
    assert kit.claim() == ["A"]


def skip_frees_a_held_partition(kit: Kit) -> None:
    """Skipped, the dead head stays dead and the next one goes (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.die("A")
    assert kit.store.skip_head("q", "!x")
    assert (kit.claim(), kit.state("A")) == (["B"], TaskState.FAILED)


def skip_makes_a_blocked_head_dead(kit: Kit) -> None:
    """A head that waits for its retry is made dead, and the partition goes on at once (§6; base.py)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.retry("A", delay=3600)
    assert kit.store.skip_head("q", "!x")
    assert (kit.state("A"), kit.info("A").reason) == (TaskState.FAILED, "skipped")
    assert kit.claim() == ["B"]


def skip_leaves_a_running_head_alone(kit: Kit) -> None:
    """A head in a worker's hands is not skipped (base.py)."""
    kit.publish("A", partition="!x")
    kit.claim()
    assert not kit.store.skip_head("q", "!x")
    kit.ack("A")
    assert not kit.store.skip_head("q", "!x")


def replay_of_a_held_head_frees_its_partition(kit: Kit) -> None:
    """Who replays the dead head has dealt with it: the partition goes on, the head behind those who waited (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.die("A")
    assert kit.replay("A") == [True]
    assert kit.work_off() == ["B", "A"]


def replay_of_a_held_head_that_is_alone_works(kit: Kit) -> None:
    """Also when nothing else is in the partition: it ends and is born again in one step (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", partition="!x")
    kit.claim()
    kit.die("A")
    assert kit.replay("A") == [True]
    assert kit.work_off() == ["A"]
    assert kit.partition("!x") is None


def delete_queue_waits_for_its_tasks(kit: Kit) -> None:
    """A queue with unfinished tasks is not deleted; without them it goes, its history and keys too (base.py)."""
    kit.configure(weight=7)
    kit.publish("A", key="k")
    assert not kit.store.delete_queue("q")
    kit.claim()
    kit.ack("A")
    assert kit.store.delete_queue("q")
    assert (kit.look("A"), kit.store.stats(["q"])) == (None, [])
    assert not kit.publish("A2", key="k")[0].duplicate
    assert kit.stats().config.weight == 1
