"""Fairness between queues (§5)."""

from __future__ import annotations

from collections import Counter

from taskmq.testing.conformance.kit import Kit, names, needs


def _fill(kit: Kit, count: int, *queues: str, priority: int = 0) -> None:
    for queue in queues:
        kit.publish(*names(f"{queue} ", count), queue=queue, priority=priority)


def _turns(claimed: list[str]) -> str:
    """The queues of these tasks, one letter each: the queue's name."""
    return "".join(name[0] for name in claimed)


def reserve_shares_by_weight(kit: Kit) -> None:
    """Weights 3:1 with 100 tasks each at one priority: 40 claims give 30 ± 2 and 10 ± 2 (§5)."""
    kit.configure("a", weight=3)
    kit.configure("b", weight=1)
    _fill(kit, 100, "a", "b")
    got = Counter(_turns(kit.claim_one_by_one(40, "a", "b")))
    assert abs(got["a"] - 30) <= 2
    assert abs(got["b"] - 10) <= 2


def reserve_shares_by_weight_within_a_batch(kit: Kit) -> None:
    """A batch is as fair as single claims (§5)."""
    kit.configure("a", weight=1)
    kit.configure("b", weight=3)
    _fill(kit, 100, "a", "b")
    got = Counter(_turns(kit.claim(40, "a", "b")))
    assert abs(got["a"] - 10) <= 2
    assert abs(got["b"] - 30) <= 2


def reserve_alternates_between_equal_queues(kit: Kit) -> None:
    """Equal weights take turns, ties go by queue name, and whose task is older does not matter (§5)."""
    _fill(kit, 4, "b")
    kit.advance(60)
    _fill(kit, 4, "a", "c")
    assert _turns(kit.claim_one_by_one(9, "c", "a", "b")) == "abcabcabc"


def reserve_breaks_ties_by_the_bytes_of_names(kit: Kit) -> None:
    """Equal claims of queues go by their names, compared as bytes: capitals before small letters (§5, §11)."""
    queues = ("b", "a", "B", "a.", "_", "A")
    for queue in queues:
        kit.publish(f"in {queue}", queue=queue)
    assert kit.claim_one_by_one(6, *queues) == [f"in {queue}" for queue in ("A", "B", "_", "a", "a.", "b")]


def reserve_lets_priority_beat_weight(kit: Kit) -> None:
    """A priority-5 task in the queue of weight 1 comes first (§5)."""
    kit.configure("a", weight=1000)
    _fill(kit, 3, "a")
    _fill(kit, 2, "b", priority=5)
    assert _turns(kit.claim_one_by_one(4, "a", "b")) == "bbaa"


def reserve_compares_only_heads_of_the_band(kit: Kit) -> None:
    """The band is the highest head priority; each claim looks at the heads anew (§5)."""
    kit.publish("a9", queue="a", priority=9)
    kit.publish("a1", queue="a", priority=1)
    kit.publish("b5", queue="b", priority=5)
    kit.publish("b2", queue="b", priority=2)
    kit.publish("c9", queue="c", priority=9)
    assert kit.claim_one_by_one(9, "a", "b", "c") == ["a9", "c9", "b5", "b2", "a1"]


def reserve_counts_an_aging_queue_as_band_0(kit: Kit) -> None:
    """An urgent head of an aging queue competes as band 0 (§5)."""
    kit.configure("a", order="aging")
    _fill(kit, 2, "a", priority=9)
    _fill(kit, 1, "b", priority=1)
    _fill(kit, 2, "c")
    assert _turns(kit.claim_one_by_one(5, "a", "b", "c")) == "bacac"


def reserve_counts_what_it_served(kit: Kit) -> None:
    """Each claim adds one to its queue's ``served``, and to no other's (§5)."""
    _fill(kit, 5, "a", "b")
    kit.claim(3, "a")
    assert (kit.stats("a").served, kit.stats("b").served) == (3, 0)
    kit.claim(1, "b")
    assert (kit.stats("a").served, kit.stats("b").served) == (3, 1)


def reserve_never_strays_more_than_one_turn(kit: Kit) -> None:
    """While queues are backlogged in one band, |served_a/w_a - served_b/w_b| is at most one turn (§10.5)."""
    weights = {"a": 1, "b": 2, "c": 3, "d": 7}
    for queue, weight in weights.items():
        kit.configure(queue, weight=weight)
        _fill(kit, 150, queue)
    for round_number in range(60):
        kit.claim(1 + round_number % 5, *weights)
        turns = [stats.served / weights[stats.name] for stats in kit.store.stats(list(weights))]
        assert max(turns) - min(turns) <= 1


def reserve_lets_a_late_queue_catch_up_ten_turns(kit: Kit) -> None:
    """A queue that joins after another has served very much gets at most 10 extra turns (§5, clamp)."""
    _serve(kit, "a", 300)
    _fill(kit, 60, "a", "b")
    got = _turns(kit.claim_one_by_one(60, "a", "b"))
    assert got.count("b") <= 30 + 5
    assert got.count("b") >= 30
    assert Counter(got[20:])["a"] == 20


def reserve_catches_up_by_weight(kit: Kit) -> None:
    """The ten turns of a late queue are worth 10 * weight tasks (§5, clamp)."""
    kit.configure("b", weight=3)
    _serve(kit, "a", 300)
    _fill(kit, 60, "a", "b")
    got = _turns(kit.claim_one_by_one(60, "a", "b"))
    assert abs(got.index("a") - 30) <= 1


def reserve_catches_up_fully_within_ten_turns(kit: Kit) -> None:
    """A queue that is less than ten turns behind is not clamped: it gets all of them (§5)."""
    _serve(kit, "a", 9)
    _fill(kit, 30, "a", "b")
    assert _turns(kit.claim_one_by_one(12, "a", "b")) == "bbbbbbbbb" + "aba"


def reserve_writes_the_clamped_service_back(kit: Kit) -> None:
    """The clamped value is what is written back: the claim of 10 behind the leader, plus one (§5, §11)."""
    _serve(kit, "a", 300)
    _fill(kit, 2, "a", "b")
    assert kit.claim(1, "a", "b") == ["b 1"]
    assert kit.stats("b").served == 300 - 10 + 1


def reserve_keeps_service_over_idle_times(kit: Kit) -> None:
    """A queue that ran empty and comes back does not monopolise the workers (§5, clamp)."""
    _fill(kit, 5, "a")
    kit.work_off("a", "b")
    _serve(kit, "b", 100)
    _fill(kit, 40, "a", "b")
    assert _turns(kit.claim_one_by_one(30, "a", "b")).count("a") <= 10 + 10


def reserve_gives_a_batch_over_queues_as_it_gives_singles(kit: Kit) -> None:
    """Over several queues, too, a batch of n is n single claims, and leaves the same service (§5)."""
    for way in ("batch", "single"):
        kit.configure(f"a-{way}", weight=3, max_running=9)
        kit.configure(f"b-{way}", order="aging")
        for number in range(12):
            kit.publish(f"a-{way} {number}", queue=f"a-{way}", priority=number % 2)
            kit.publish(f"b-{way} {number}", queue=f"b-{way}", priority=number % 5, partition="xyz"[number % 3])
            kit.publish(f"c-{way} {number}", queue=f"c-{way}", partition=f"!{number % 4}")
    batch = kit.claim(20, "a-batch", "b-batch", "c-batch")
    singles = kit.claim_one_by_one(20, "a-single", "b-single", "c-single")
    assert [name.replace("batch", "single") for name in batch] == singles
    served = [[stats.served for stats in kit.store.stats([f"{q}-{way}" for q in "abc"])] for way in ("batch", "single")]
    assert served[0] == served[1]


def reserve_skips_paused_queues_in_the_comparison(kit: Kit) -> None:
    """A paused queue does not compete, and its urgent head makes no band (§5.1)."""
    kit.configure("a", paused=True)
    _fill(kit, 2, "a", priority=9)
    _fill(kit, 2, "b", "c")
    assert _turns(kit.claim_one_by_one(4, "a", "b", "c")) == "bcbc"


def reserve_skips_full_queues_in_the_comparison(kit: Kit) -> None:
    """A queue at its max_running does not compete (§5.1)."""
    kit.configure("a", max_running=1)
    _fill(kit, 3, "a", priority=9)
    _fill(kit, 2, "b")
    assert _turns(kit.claim(3, "a", "b")) == "abb"


def reserve_takes_only_from_the_queues_it_names(kit: Kit) -> None:
    """A claim sees its own queues only; a name given twice counts once (§5)."""
    _fill(kit, 3, "a", "b", "c")
    assert _turns(kit.claim(5, "b", "b")) == "bbb"


def reserve_of_unknown_queues_is_empty(kit: Kit) -> None:
    """A worker may subscribe to a queue that does not exist yet (§5)."""
    assert kit.claim(5, "nobody", "knows") == []
    _fill(kit, 1, "nobody")
    assert kit.claim(5, "nobody", "knows") == ["nobody 1"]


def reserve_takes_no_turn_for_retries_and_hand_backs(kit: Kit) -> None:
    """Only claims change ``served``: settling, whichever way, does not (§5.4)."""
    _fill(kit, 4, "a")
    kit.claim(4, "a")
    kit.ack("a 1")
    kit.retry("a 2")
    kit.hand_back("a 3")
    kit.die("a 4")
    assert kit.stats("a").served == 4


def reserve_never_preempts(kit: Kit) -> None:
    """What is claimed stays claimed, whatever more urgent is published (§5)."""
    _fill(kit, 2, "a")
    kit.claim(1, "a")
    _fill(kit, 1, "b", priority=9)
    assert kit.claim(1, "a", "b") == ["b 1"]
    kit.ack("a 1")


@needs("shared")
def reserve_is_fair_across_stores(kit: Kit) -> None:
    """``served`` lives in the store: claims by two processes together are as fair as those by one (§5.4)."""
    other = kit.open()
    kit.configure("a", weight=3)
    _fill(kit, 60, "a", "b")
    claimed = [kit.claim(1, "a", "b", store=store)[0] for _ in range(20) for store in (kit.store, other)]
    assert abs(_turns(claimed).count("a") - 30) <= 2


def _serve(kit: Kit, queue: str, count: int) -> None:
    """Have a queue serve so many tasks alone."""
    kit.publish(*names(f"{queue}-old ", count), queue=queue)
    kit.work_off(queue, n=count)
