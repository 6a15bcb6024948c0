"""Turns between the partitions of a queue (§6, §11)."""

from __future__ import annotations

from collections import Counter

from taskmq.testing.conformance.kit import Kit, names


def _fill(kit: Kit, count: int, *codes: str | None, weight: int | None = None, priority: int = 0) -> None:
    for code in codes:
        kit.publish(*names(f"{code or 'plain'} ", count), partition=code, weight=weight, priority=priority)


def _flows(claimed: list[str]) -> list[str]:
    return [name.split()[0] for name in claimed]


def reserve_takes_turns_between_partitions(kit: Kit) -> None:
    """Flows whose heads have the same priority take turns, whoever published first and most (§6)."""
    _fill(kit, 50, "x")
    _fill(kit, 5, "y")
    assert Counter(_flows(kit.claim_one_by_one(10))) == {"x": 5, "y": 5}


def reserve_takes_turns_by_partition_weight(kit: Kit) -> None:
    """A turn costs 1/weight: weights 3:1 give 30 ± 2 and 10 ± 2 of 40 (§6)."""
    _fill(kit, 50, "x", weight=3)
    _fill(kit, 50, "y")
    got = Counter(_flows(kit.claim_one_by_one(40)))
    assert abs(got["x"] - 30) <= 2
    assert abs(got["y"] - 10) <= 2


def reserve_keeps_a_partition_weight_that_is_not_given_again(kit: Kit) -> None:
    """A publish without weight keeps the partition's (§11)."""
    _fill(kit, 1, "x", weight=3)
    kit.publish(*names("x more ", 50), partition="x")
    _fill(kit, 50, "y")
    info = kit.partition("x")
    assert info is not None
    assert info.weight == 3
    assert abs(Counter(_flows(kit.claim_one_by_one(40)))["x"] - 30) <= 2


def reserve_takes_over_a_partition_weight_with_its_tasks(kit: Kit) -> None:
    """A partition's weight travels with its tasks and is set as they enter the line (§11)."""
    _fill(kit, 1, "x", weight=2)
    kit.publish("later", partition="x", weight=5, delay=10)
    assert [info.weight for info in kit.store.partitions("q")] == [2]
    kit.publish("now", partition="x", weight=3)
    assert [info.weight for info in kit.store.partitions("q")] == [3]
    kit.advance(10)
    kit.maintain()
    assert [info.weight for info in kit.store.partitions("q")] == [5]


def reserve_decides_by_priority_before_turns(kit: Kit) -> None:
    """Priority decides first, also inside a queue with partitions (§6)."""
    _fill(kit, 2, "x")
    _fill(kit, 3, "y", priority=5)
    _fill(kit, 1, None, priority=7)
    assert _flows(kit.claim_one_by_one(6)) == ["plain", "y", "y", "y", "x", "x"]


def reserve_counts_unpartitioned_tasks_as_one_flow(kit: Kit) -> None:
    """Unpartitioned tasks of a queue together are one flow of weight 1 (§6)."""
    _fill(kit, 50, None)
    _fill(kit, 10, "x")
    _fill(kit, 10, "y", weight=2)
    got = Counter(_flows(kit.claim_one_by_one(20)))
    assert abs(got["plain"] - 5) <= 1
    assert abs(got["x"] - 5) <= 1
    assert abs(got["y"] - 10) <= 1


def reserve_lets_a_new_partition_join_now(kit: Kit) -> None:
    """A partition that joins starts at the queue's virtual time: it neither starves nor bursts (§6)."""
    _fill(kit, 80, "x", "y")
    kit.claim_one_by_one(60)
    _fill(kit, 20, "z")
    got = Counter(_flows(kit.claim_one_by_one(15)))
    assert all(abs(got[code] - 5) <= 1 for code in "xyz")


def reserve_lets_a_partition_rejoin_now(kit: Kit) -> None:
    """A partition that ran empty and comes back does not catch up on the turns it missed (§6)."""
    _fill(kit, 60, "x")
    _fill(kit, 2, "y")
    kit.claim_one_by_one(50)
    kit.publish(*names("y again ", 20), partition="y")
    got = Counter(_flows(kit.claim_one_by_one(10)))
    assert abs(got["y"] - 5) <= 1


def reserve_gives_no_burst_to_who_waited_at_a_lower_priority(kit: Kit) -> None:
    """A flow that waited at a lower priority gets its fair turns afterwards, not all it missed (§11)."""
    _fill(kit, 40, "x", priority=5)
    _fill(kit, 40, "y")
    kit.claim_one_by_one(40)
    _fill(kit, 40, "z")
    assert abs(Counter(_flows(kit.claim_one_by_one(20)))["y"] - 10) <= 1


def reserve_serves_late_names_under_new_partitions(kit: Kit) -> None:
    """Who came first settles equal claims: a steady supply of new partitions starves nobody (§11)."""
    _fill(kit, 1, "zz")
    for number in range(10):
        _fill(kit, 1, f"aa{number}")
    assert _flows(kit.claim_one_by_one(3))[0] == "zz"


def reserve_breaks_equal_tags_by_the_bytes_of_codes(kit: Kit) -> None:
    """Of equal tags the unpartitioned flow goes first, then the smaller code, compared as bytes (§11)."""
    for code in ("b", None, "B"):
        kit.publish(*names(f"{code} ", 4), partition=code, handler=str(code))
    assert kit.claim_one_by_one(2, handlers=[("B", "")]) == ["B 1", "B 2"]
    assert sorted(kit.claim_one_by_one(2, handlers=[("b", ""), ("None", "")])) == ["None 1", "b 1"]
    assert kit.claim_one_by_one(3) == ["None 2", "B 3", "b 2"]


def reserve_competes_by_age_in_an_aging_queue(kit: Kit) -> None:
    """In an aging queue the heads of the flows compete by the aging key: no turns (§6)."""
    kit.configure(order="aging")
    for name, code in (("A", "x"), ("B", "x"), ("C", "x"), ("D", "y"), ("E", None)):
        kit.publish(name, partition=code)
        kit.advance(1)
    assert kit.claim_one_by_one(5) == ["A", "B", "C", "D", "E"]
