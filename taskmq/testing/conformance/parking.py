"""Tasks that wait for a slot of their limit's key: parked, returned in place, and costing nobody anything (§8)."""

from __future__ import annotations

from taskmq.clock import SECOND
from taskmq.outcome import Ack, Retry
from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import LEASE, Kit, names, occupy
from taskmq.transport.base import Reserve, Settle, Settlement

ONE = Limit("k", 1)
TWO = Limit("k", 2)


# ── parked ──


def park_shows_on_the_task(kit: Kit) -> None:
    """A task that a claim finds at its key's limit is parked, and still QUEUED (§8; state.py, TaskInfo)."""
    kit.publish("A", "B", limit=ONE)
    assert not kit.info("B").parked
    assert kit.claim(9) == ["A"]
    info = kit.info("B")
    assert (info.parked, info.state, info.limit) == (True, TaskState.QUEUED, ONE)
    kit.ack("A")
    assert kit.claim(9) == ["B"]
    assert not kit.info("B").parked


def park_consumes_no_attempt_and_no_epoch(kit: Kit) -> None:
    """Waiting for a slot is neither an attempt nor a claim (§8)."""
    occupy(kit, ONE)
    kit.publish("A", limit=ONE, max_attempts=1)
    for _ in range(5):
        assert kit.claim(9) == []
    kit.ack("running")
    assert kit.claim(9) == ["A"]
    assert (kit.delivery("A").attempt, kit.delivery("A").epoch) == (1, 1)


def park_takes_no_turn_between_queues(kit: Kit) -> None:
    """A claim that only parks leaves its queue's service as it was (§8)."""
    occupy(kit, ONE, queue="a")
    occupy(kit, Limit("other", 1), "running too", queue="b")
    kit.publish("p", queue="a", partition="!x", limit=ONE)
    kit.publish(*names("a", 3), queue="a")
    kit.publish(*names("b", 3), queue="b")
    assert kit.claim(1, "a", "b") == ["a1"]
    assert kit.stats("a").served == 2
    assert kit.claim_one_by_one(5, "a", "b") == ["b1", "a2", "b2", "a3", "b3"]


def park_takes_no_turn_between_partitions(kit: Kit) -> None:
    """A partition whose head is parked has had no turn: its next task stands where it stood (§8, §6)."""
    occupy(kit, TWO)
    for code in ("p", "r"):
        kit.publish(f"{code}1", partition=code, limit=TWO)
    kit.publish("r2", "r3", "r4", partition="r")
    kit.publish("p2", "p3", "p4", partition="p")
    assert kit.claim_one_by_one(7) == ["p1", "r2", "p2", "r3", "p3", "r4", "p4"]


def park_stops_nobody_else_in_its_queue(kit: Kit) -> None:
    """Behind a task of a full key the others of its line go on (§8)."""
    occupy(kit, ONE)
    kit.publish("A", limit=ONE, priority=9)
    kit.publish("B", limit=Limit("other", 1))
    kit.publish("C", "D")
    assert kit.claim(9) == ["B", "C", "D"]


def park_stops_no_other_queue(kit: Kit) -> None:
    """A queue of tasks of a full key leaves the workers to other queues, however urgent it is (§8)."""
    occupy(kit, ONE, queue="a")
    kit.publish(*names("a", 5), queue="a", limit=ONE, priority=9)
    kit.publish(*names("b", 3), queue="b")
    assert kit.claim(9, "a", "b") == ["b1", "b2", "b3"]


def park_happens_at_publish_when_the_key_is_full(kit: Kit) -> None:
    """A task that is published to a full key is parked at once, so that no claim meets it (policy/limits.py)."""
    occupy(kit, ONE)
    kit.publish(*names("T", 5), limit=ONE)
    kit.publish(*names("P", 2), limit=ONE, partition="p")
    kit.publish("later", limit=ONE, delay=10)
    assert kit.limit("k") == (1, 7)
    kit.advance(10)
    kit.maintain()
    assert kit.limit("k") == (1, 8)


def park_spares_ordered_partitions_at_publish(kit: Kit) -> None:
    """In an ordered partition a task stands behind its head first, whatever its limit (policy/limits.py)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x")
    kit.publish("B", partition="!x", limit=ONE)
    assert kit.limit("k") == (1, 0)
    assert kit.claim(9) == ["A"]
    kit.ack("A")
    assert kit.claim(9) == []
    assert kit.limit("k") == (1, 1)


def park_takes_at_most_a_hundred_a_claim(kit: Kit) -> None:
    """One claim parks at most 100 tasks and then says ``more`` (§8)."""
    kit.publish(*names("T", 251), limit=ONE)
    parked = []
    for _ in range(3):
        got = kit.reserve(9)
        parked.append((len(got.deliveries), got.more, kit.limit("k")[1]))
    assert parked == [(1, True, 100), (0, True, 200), (0, False, 250)]


def park_of_a_crowd_hides_no_work(kit: Kit) -> None:
    """However many tasks of a full key stand before it, a worker that asks while there is ``more`` finds work (§8)."""
    kit.publish(*names("T", 250), limit=ONE)
    kit.publish("work")
    kit.publish("elsewhere", queue="other")
    assert kit.claim() == ["T1"]
    assert kit.claim(1, "q", "other") == ["elsewhere"]
    assert kit.claim(1, "q", "other") == ["work"]


def park_counts_among_what_is_ready(kit: Kit) -> None:
    """Parked tasks count as ready ones of their queue and as waiting ones of their partition (base.py, QueueStats)."""
    occupy(kit, ONE)
    kit.publish("A", "B", limit=ONE, priority=3)
    kit.publish("C", limit=ONE, partition="p")
    kit.claim(9)
    assert (kit.stats().ready, dict(kit.stats().by_priority)) == (3, {3: 2, 0: 1})
    info = kit.partition("p")
    assert info is not None
    assert (info.waiting, info.running) == (1, 0)


# ── returned ──


def parked_tasks_return_in_place(kit: Kit) -> None:
    """When a slot frees, a parked task stands where it stood: before what was published after it (§8)."""
    occupy(kit, ONE)
    kit.publish("A", limit=ONE)
    kit.publish("B", "C")
    kit.publish("D", limit=ONE, priority=1)
    kit.publish("E", priority=1)
    assert kit.claim_one_by_one(1) == ["E"]
    kit.ack("running")
    assert kit.claim(9) == ["D", "B", "C"]
    kit.publish("F")
    kit.ack("D")
    assert kit.claim(9) == ["A", "F"]


def parked_tasks_return_first_in_line_first(kit: Kit) -> None:
    """Of a key's parked tasks the first by priority, then by acceptance takes the slot, whenever it was parked (§8)."""
    occupy(kit, ONE)
    kit.publish("A", "B", limit=ONE)
    kit.publish("C", limit=ONE, priority=5)
    kit.claim(9)
    kit.publish("D", limit=ONE, priority=7)
    kit.ack("running")
    assert kit.work_off() == ["D", "C", "A", "B"]


def parked_tasks_return_as_many_as_there_are_slots(kit: Kit) -> None:
    """Each freed slot brings one task back, not all of them (policy/limits.py)."""
    kit.publish(*names("T", 9), limit=Limit("k", 3))
    kit.claim(3)
    kit.claim(9)
    assert kit.limit("k") == (3, 6)
    kit.ack("T1", "T2")
    kit.store.pause_queue("q", True)
    kit.claim(9)
    assert kit.limit("k")[1] >= 4
    kit.store.pause_queue("q", False)
    assert kit.claim(9) == ["T4", "T5"]
    assert kit.limit("k") == (3, 4)


def parked_tasks_of_several_queues_share_a_free_slot(kit: Kit) -> None:
    """A free slot goes to whichever queue asks: one that nobody claims from keeps it from no other (§8)."""
    occupy(kit, ONE)
    kit.publish("A", queue="a", limit=ONE)
    kit.publish("B", queue="b", limit=ONE)
    kit.ack("running")
    assert kit.claim(9, "b") == ["B"]
    assert kit.claim(9, "a") == []
    kit.ack("B")
    assert kit.claim(9, "a") == ["A"]


def parked_tasks_of_a_paused_queue_keep_no_slot(kit: Kit) -> None:
    """A paused queue's parked tasks leave a free slot to another queue, and come when they may (§8)."""
    occupy(kit, ONE)
    kit.publish("A", queue="a", limit=ONE)
    kit.publish("B", queue="b", limit=ONE)
    kit.store.pause_queue("a", True)
    kit.ack("running")
    assert kit.claim(9, "a", "b") == ["B"]
    kit.ack("B")
    kit.store.pause_queue("a", False)
    assert kit.claim(9, "a", "b") == ["A"]


def parked_tasks_stay_while_their_own_limit_is_reached(kit: Kit) -> None:
    """A slot that frees for tasks with a larger n is none for those with a smaller one (§8)."""
    for number in range(3):
        occupy(kit, Limit("k", 3), f"running {number}")
    kit.publish("one", limit=ONE)
    kit.publish("three", limit=Limit("k", 3))
    kit.ack("running 0")
    assert kit.claim(9) == ["three"]
    kit.ack("running 1", "running 2")
    assert kit.claim(9) == []
    kit.ack("three")
    assert kit.claim(9) == ["one"]


def parked_tasks_return_after_lost_leases(kit: Kit) -> None:
    """A worker that dies frees the slots it held; the task itself, first in line, comes before the parked (§8)."""
    kit.publish(*names("T", 3), limit=ONE, max_attempts=9)
    kit.claim(9)
    kit.claim(9)
    kit.advance(LEASE)
    assert kit.claim(9) == ["T1"]
    kit.die("T1")
    assert kit.work_off() == ["T2", "T3"]


def settle_and_reserve_fills_the_slot_it_frees(kit: Kit) -> None:
    """A combined exchange gives its own slot to the next task of the key (§8; base.py)."""
    kit.publish("A", "B", limit=ONE)
    assert kit.claim(9) == ["A"]
    settle = Settle(items=[Settlement(kit.delivery("A"), Ack())])
    results, got = kit.store.settle_and_reserve(settle, Reserve(queues=["q"], limit=9, worker="w"))
    assert results == [True]
    assert [kit.name(delivery.id) for delivery in got.deliveries] == ["B"]


# ── partitions ──


def parked_head_keeps_its_ordered_partition(kit: Kit) -> None:
    """An ordered partition whose head is parked waits with it, and nobody else does (§8)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    kit.publish("B", partition="!x")
    kit.publish("C", partition="!y")
    kit.publish("D")
    assert sorted(kit.claim(9)) == ["C", "D"]
    assert kit.claim(9) == []
    kit.ack("running")
    assert kit.claim(9) == ["A", "B"]


def parked_head_is_shown_in_its_partition(kit: Kit) -> None:
    """A partition that waits with its parked head is alive and counts it (base.py, PartitionInfo)."""
    occupy(kit, ONE)
    kit.publish("A", "B", partition="!x", limit=ONE)
    kit.claim(9)
    info = kit.partition("!x")
    assert info is not None
    assert (info.waiting, info.running, info.held_by, info.blocked_until) == (2, 0, None, None)


def parked_task_of_a_parallel_partition_lets_the_next_go(kit: Kit) -> None:
    """In a parallel partition the tasks behind a parked one go on (§8)."""
    occupy(kit, ONE)
    kit.publish("A", partition="x", limit=ONE)
    kit.publish("B", "C", partition="x")
    assert kit.claim(9) == ["B", "C"]
    kit.ack("running")
    assert kit.claim(9) == ["A"]


def parked_head_yields_to_a_more_urgent_task(kit: Kit) -> None:
    """A more urgent task of its partition goes first once the partition goes on (§6, §8)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    assert kit.claim(9) == []
    kit.publish("urgent", partition="!x", priority=5)
    kit.ack("running")
    assert kit.work_off() == ["urgent", "A"]


def parked_tasks_keep_the_order_of_their_ordered_partition(kit: Kit) -> None:
    """Limits change no order inside ordered partitions, whatever is parked when (§8, §10.3)."""
    codes = [f"!p{number}" for number in range(4)]
    for code in codes:
        kit.publish(*names(f"{code} ", 5), partition=code, limit=TWO)
    done = kit.work_off(n=3)
    for code in codes:
        assert [name for name in done if name.startswith(f"{code} ")] == names(f"{code} ", 5)


# ── ended while parked ──


def cancel_of_a_parked_task_ends_it(kit: Kit) -> None:
    """A parked task is cancelled at once, takes no slot, and the next one goes (§2, §8)."""
    occupy(kit, ONE)
    kit.publish("A", "B", "C", limit=ONE)
    kit.claim(9)
    assert kit.cancel("A") == [TaskState.CANCELLED]
    assert kit.limit("k") == (1, 2)
    kit.ack("running")
    assert kit.work_off() == ["B", "C"]


def cancel_of_a_parked_head_lets_its_partition_go_on(kit: Kit) -> None:
    """The next task of an ordered partition goes when its parked head is cancelled (§6, §8)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    kit.publish("B", partition="!x")
    kit.claim(9)
    kit.cancel("A")
    assert kit.claim(9) == ["B"]


def expires_ends_a_parked_task(kit: Kit) -> None:
    """A parked task that is not started in time expires, by a claim or by housekeeping (§2, §8)."""
    occupy(kit, ONE)
    kit.publish("A", limit=ONE, expires=5)
    kit.publish("B", limit=ONE)
    kit.publish("C", partition="!x", limit=ONE, expires=5)
    kit.publish("D", partition="!x")
    assert kit.claim(9) == []
    kit.advance(5)
    assert kit.claim(9) == ["D"]
    assert kit.states("A", "C") == [TaskState.EXPIRED] * 2
    assert kit.limit("k") == (1, 1)
    kit.ack("running")
    assert kit.claim(9) == ["B"]


def skip_makes_a_parked_head_dead(kit: Kit) -> None:
    """An operator can skip the parked head of an ordered partition: it is dead, the next one goes (§6; base.py)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    kit.publish("B", partition="!x")
    kit.claim(9)
    assert kit.store.skip_head("q", "!x")
    assert (kit.state("A"), kit.info("A").reason) == (TaskState.FAILED, "skipped")
    assert kit.claim(9) == ["B"]
    assert kit.limit("k") == (1, 0)


def parked_partition_leaves_nothing_behind(kit: Kit) -> None:
    """A partition whose last task ended while it was parked is gone (§6)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    kit.publish("B", partition="x", limit=ONE)
    kit.claim(9)
    kit.cancel("A", "B")
    assert (kit.partition("!x"), kit.partition("x"), kit.stats().partitions) == (None, None, 0)


def replay_into_a_full_key_parks(kit: Kit) -> None:
    """A replayed task of a full key waits for a slot like any other (§8, §2)."""
    kit.publish("A", limit=ONE)
    kit.claim()
    kit.die("A")
    occupy(kit, ONE)
    assert kit.replay("A") == [True]
    assert (kit.claim(9), kit.info("A").parked) == ([], True)
    kit.ack("running")
    assert kit.claim(9) == ["A"]


def parked_tasks_return_by_turns_between_partitions(kit: Kit) -> None:
    """Parallel partitions that share a full key take turns at its slots, whoever published first and most (§6, §8)."""
    kit.publish(*names("a", 6), partition="a", limit=ONE)
    kit.publish(*names("b", 3), partition="b", limit=ONE)
    assert kit.work_off(n=9) == ["a1", "b1", "a2", "b2", "a3", "b3", "a4", "a5", "a6"]


def parked_tasks_return_by_weight(kit: Kit) -> None:
    """The turns at a key's slots know the partitions' weights (§6)."""
    occupy(kit, ONE)
    kit.publish(*names("a", 6), partition="a", weight=2, limit=ONE)
    kit.publish(*names("b", 3), partition="b", limit=ONE)
    kit.ack("running")
    assert kit.work_off(n=1) == ["a1", "b1", "a2", "a3", "b2", "a4", "a5", "b3", "a6"]


def parked_late_comer_gets_its_turn_and_no_more(kit: Kit) -> None:
    """A partition that comes to a full key late neither waits for all before it nor catches up (§6)."""
    occupy(kit, ONE)
    kit.publish(*names("a", 4), partition="a", limit=ONE)
    kit.ack("running")
    for _ in range(2):
        kit.ack(*kit.claim(1))
    assert kit.claim(1) == ["a3"]
    kit.publish(*names("b", 3), partition="b", limit=ONE)
    kit.publish(*names("c", 1), partition="c", limit=ONE)
    kit.ack("a3")
    assert kit.work_off(n=1) == ["b1", "c1", "a4", "b2", "b3"]


def parked_partition_returns_in_its_order(kit: Kit) -> None:
    """A task that is parked after a later one of its partition still goes before it (§6, §8)."""
    kit.publish("A1", "A2", partition="a", limit=ONE)
    assert kit.claim(9) == ["A1"]
    kit.settle("A1", Retry(5 * SECOND))
    kit.publish("X", limit=ONE, priority=9)
    assert kit.claim(9) == ["X"]
    kit.advance(6)
    assert kit.claim(9) == []
    kit.ack("X")
    assert kit.work_off(n=1) == ["A1", "A2"]


def parked_head_is_overtaken_by_a_more_urgent_task(kit: Kit) -> None:
    """Inside a partition the sort key decides: a more urgent task is the head now, and nothing keeps it (§6)."""
    occupy(kit, ONE)
    kit.publish("A", partition="!x", limit=ONE)
    assert kit.claim(9) == []
    kit.publish("urgent", partition="!x", priority=5)
    assert kit.claim(9) == ["urgent"]
