"""``on_dead="hold"``: a dead task stops its ordered partition (§6)."""

from __future__ import annotations

from taskmq.testing.conformance.kit import Kit


def die_with_hold_stops_an_ordered_partition(kit: Kit) -> None:
    """A dead task stops its ordered partition, whatever time passes and whatever is published (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.die("A")
    assert kit.claim(9) == []
    kit.advance(3600)
    kit.maintain()
    kit.publish("urgent", partition="!x", priority=9)
    assert kit.claim(9) == []


def die_with_hold_shows_who_holds(kit: Kit) -> None:
    """The partition tells whose death stopped it, even when nothing else is in it (§6; base.py)."""
    kit.configure(on_dead="hold")
    kit.publish("A", partition="!x")
    kit.claim()
    kit.die("A")
    info = kit.partition("!x")
    assert info is not None
    assert (info.held_by, info.waiting, info.running) == (kit.id("A"), 0, 0)


def die_with_hold_stops_nobody_else(kit: Kit) -> None:
    """Other partitions, parallel ones and unpartitioned tasks go on (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "A2", partition="!x")
    kit.publish("B", partition="!y")
    kit.publish("C", "C2", partition="x")
    kit.publish("D", "D2")
    kit.claim_one_by_one(6)
    for name in ("A", "C", "D"):
        kit.die(name)
    kit.ack("B", "C2", "D2")
    kit.publish("B3", partition="!y")
    kit.publish("C3", partition="x")
    kit.publish("D3")
    assert sorted(kit.claim(9)) == ["B3", "C3", "D3"]


def lost_last_attempt_with_hold_stops_its_partition(kit: Kit) -> None:
    """A task that is dead because its leases ended stops its partition like any dead task (§6, §2)."""
    kit.configure(on_dead="hold")
    kit.publish("A", partition="!x", max_attempts=1)
    kit.publish("B", partition="!x")
    kit.claim()
    kit.lose_leases()
    assert kit.claim() == []
    info = kit.partition("!x")
    assert info is not None
    assert info.held_by == kit.id("A")


def retry_with_hold_stops_nothing(kit: Kit) -> None:
    """Only death holds: retries block until their delay is over (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.retry("A", delay=10)
    kit.advance(10)
    assert kit.work_off() == ["A", "B"]


def cancel_and_expiry_with_hold_stop_nothing(kit: Kit) -> None:
    """A cancelled or expired head is not dead: the next one goes (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", partition="!x")
    kit.publish("B", partition="!x", expires=10)
    kit.publish("C", partition="!x")
    kit.cancel("A")
    kit.advance(10)
    assert kit.claim() == ["C"]


def hold_is_a_setting_of_the_queue(kit: Kit) -> None:
    """Of two queues only the one with on_dead="hold" holds (§6)."""
    kit.configure("strictly", on_dead="hold")
    for queue in ("strictly", "lenient"):
        kit.publish(f"{queue} A", f"{queue} B", queue=queue, partition="!x")
        kit.claim(1, queue)
        kit.die(f"{queue} A")
    assert kit.claim(9, "strictly", "lenient") == ["lenient B"]


def die_with_hold_outlives_the_record(kit: Kit) -> None:
    """A hold lasts until an operator ends it, also when the dead head's record is past its retention (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", partition="!x", retention=5)
    kit.publish("B", partition="!x")
    kit.claim()
    kit.die("A")
    kit.advance(5)
    kit.maintain()
    assert (kit.look("A"), kit.claim()) == (None, [])
    assert kit.store.release_partition("q", "!x")
    assert kit.claim() == ["B"]


def purge_of_a_held_head_frees_its_partition(kit: Kit) -> None:
    """An operator who drops the dead head has dealt with it: the partition goes on (§6)."""
    kit.configure(on_dead="hold")
    kit.publish("A", "B", partition="!x")
    kit.claim()
    kit.die("A")
    assert kit.claim() == []
    assert kit.store.purge([kit.id("A")]) == 1
    assert kit.claim() == ["B"]
