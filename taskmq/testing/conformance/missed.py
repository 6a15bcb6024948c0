"""A free slot is never left idle: when the task that stood in line for it cannot take it, another one does (§8)."""

from __future__ import annotations

from taskmq.queue import Limit
from taskmq.testing.conformance.kit import Kit, occupy

ONE = Limit("k", 1)


def _free(kit: Kit) -> None:
    """The slot is free, and a claim that may take nothing has put the first parked task back in line."""
    kit.ack("running")
    kit.configure(max_running=kit.stats().running + 1)
    kit.publish("blocker", priority=9)
    assert kit.claim(1, lease=36_000) == ["blocker"]
    assert kit.claim(9) == []
    kit.configure()


def slot_missed_by_a_cancelled_task_goes_to_the_next(kit: Kit) -> None:
    """A task that came back for a slot and is cancelled leaves it to the next one (policy/limits.py)."""
    occupy(kit, ONE)
    kit.publish("A", "B", limit=ONE)
    _free(kit)
    kit.cancel("A")
    assert kit.claim(9) == ["B"]


def slot_missed_by_an_expired_task_goes_to_the_next(kit: Kit) -> None:
    """A task that came back for a slot and expires leaves it to the next one (policy/limits.py)."""
    occupy(kit, ONE)
    kit.publish("A", limit=ONE, expires=5)
    kit.publish("B", limit=ONE)
    _free(kit)
    kit.advance(5)
    assert kit.claim(9) == ["B"]


def slot_missed_by_a_skipped_head_goes_to_the_next(kit: Kit) -> None:
    """A head that came back for a slot and is skipped leaves it to the next one (policy/limits.py)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    assert kit.claim(9) == []
    kit.publish("B", limit=ONE)
    _free(kit)
    assert kit.store.skip_head("q", "!x")
    assert kit.claim(9) == ["B"]


def slot_missed_by_a_paused_partition_goes_to_another(kit: Kit) -> None:
    """While a partition is paused, its tasks leave their slots to others, before and after they came back (§8)."""
    for early in (True, False):
        kit.store.flush()
        occupy(kit, ONE)
        kit.publish("A", partition="x", limit=ONE)
        kit.publish("B", limit=ONE)
        if early:
            kit.store.pause_partition("q", "x", True)
        _free(kit)
        kit.store.pause_partition("q", "x", True)
        assert kit.claim(9) == ["B"]
        kit.store.pause_partition("q", "x", False)
        assert kit.claim(9) == []
        kit.ack("B")
        assert kit.claim(9) == ["A"]


def slot_missed_by_a_blocked_partition_goes_to_another(kit: Kit) -> None:
    """While a retry blocks a partition as a whole, its tasks leave their slots to others (§8, §6)."""
    for early in (True, False):
        kit.store.flush()
        kit.publish("first", partition="x", max_attempts=9)
        kit.claim(lease=36_000)
        occupy(kit, ONE)
        kit.publish("A", partition="x", limit=ONE)
        kit.publish("B", limit=ONE)
        if early:
            kit.retry("first", delay=60, partition=True)
        _free(kit)
        if not early:
            kit.retry("first", delay=60, partition=True)
        assert kit.claim(9, lease=36_000) == ["B"]
        kit.ack("B")
        kit.advance(60)
        assert kit.claim(9) == ["first", "A"]


def slot_missed_by_a_full_partition_goes_to_another(kit: Kit) -> None:
    """While a partition is at its max_running, its tasks leave their slots to others (§8, §6)."""
    for early in (True, False):
        kit.store.flush()
        if early:
            kit.publish("first", partition="x", most=1)
            kit.claim(lease=36_000)
        occupy(kit, ONE)
        kit.publish("A", partition="x", limit=ONE, most=1)
        kit.publish("B", limit=ONE)
        _free(kit)
        if not early:
            kit.publish("first", partition="x", priority=5)
            assert kit.claim() == ["first"]
        assert kit.claim(9) == ["B"]
        kit.ack("B", "first")
        assert kit.claim(9) == ["A"]


def slot_missed_by_a_head_that_was_overtaken_goes_to_another(kit: Kit) -> None:
    """A more urgent task before a head that stands for a slot leaves that slot to others (§8, §6)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    assert kit.claim(9) == []
    kit.publish("B", limit=ONE)
    _free(kit)
    kit.publish("urgent", partition="!x", priority=5)
    assert kit.claim(9) == ["urgent", "B"]
    kit.ack("B", "urgent")
    assert kit.claim(9) == ["A"]


def slot_missed_by_a_more_urgent_task_of_its_key_is_taken_by_that(kit: Kit) -> None:
    """A more urgent task of the same key takes the slot; the one that stood for it waits again (§8, §4)."""
    occupy(kit, ONE)
    kit.publish("A", limit=ONE)
    _free(kit)
    kit.publish("urgent", limit=ONE, priority=5)
    assert kit.claim(9) == ["urgent"]
    assert kit.limit("k") == (1, 1)
    kit.ack("urgent")
    assert kit.claim(9) == ["A"]


def slot_missed_in_one_queue_goes_to_another_queue(kit: Kit) -> None:
    """What a stopped partition leaves is there for other queues' tasks of the key, too (§8)."""
    occupy(kit, ONE)
    kit.publish("A", partition="x", limit=ONE)
    kit.publish("B", queue="other", limit=ONE)
    _free(kit)
    kit.store.pause_partition("q", "x", True)
    assert kit.claim(9, "q", "other") == ["B"]


def slot_freed_while_its_partition_is_held_goes_to_another(kit: Kit) -> None:
    """A dead head with on_dead="hold" frees its slot; what it holds up leaves it to others (§8, §6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "A2", partition="!x", limit=ONE)
    kit.publish("B", limit=ONE)
    assert kit.claim(9) == ["A"]
    kit.die("A")
    assert kit.claim(9) == ["B"]


def slot_missed_by_a_head_that_was_overtaken_while_parked_goes_to_another(kit: Kit) -> None:
    """A more urgent task that came before a head while it was parked leaves the head's slot to others (§8, §6)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    assert kit.claim(9) == []
    kit.publish("B", limit=ONE)
    kit.publish("urgent", partition="!x", priority=5)
    kit.ack("running")
    assert kit.claim(9) == ["urgent", "B"]


def slot_hidden_from_a_claim_goes_to_what_it_can_run(kit: Kit) -> None:
    """A task that came back for a slot and is hidden from a claim blocks no task of the key that it can run (§8)."""
    occupy(kit, ONE)
    kit.publish("A", limit=ONE, handler="cannot")
    kit.publish("B", limit=ONE, handler="can")
    kit.ack("running")
    assert kit.claim(9, handlers=[("can", "")]) == ["B"]
