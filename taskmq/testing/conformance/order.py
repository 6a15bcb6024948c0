"""Order inside a queue: strict and aging (§3, §4)."""

from __future__ import annotations

from taskmq.testing.conformance.kit import Kit, names
from taskmq.transport.base import Reserve


def reserve_takes_the_larger_priority_first(kit: Kit) -> None:
    """In a strict queue the larger of the ten priorities goes first, whenever it was published (§4)."""
    for priority in (3, 0, 9, 5, 1, 8, 2, 7, 4, 6):
        kit.publish(f"p{priority}", priority=priority)
    assert kit.claim_one_by_one(10) == [f"p{priority}" for priority in range(9, -1, -1)]


def reserve_is_first_in_first_out_within_a_priority(kit: Kit) -> None:
    """Of equal priority the first accepted goes first, over single publishes and batches (§4)."""
    kit.publish("A", "B")
    kit.publish("urgent A", priority=5)
    kit.publish("C")
    kit.publish("urgent B", priority=5)
    assert kit.claim_one_by_one(9) == ["urgent A", "urgent B", "A", "B", "C"]


def reserve_defaults_to_strict(kit: Kit) -> None:
    """A queue that nobody configured is strict: priority 9 goes before what has waited for an hour (§4)."""
    kit.publish("old")
    kit.advance(3600)
    kit.publish("urgent", priority=9)
    assert kit.claim(2) == ["urgent", "old"]
    assert not kit.delivery("urgent").aging


def reserve_of_nothing_brings_nothing(kit: Kit) -> None:
    """A claim of no tasks, or from no queues, brings none and changes nothing (§5)."""
    kit.publish("A", "B")
    kit.publish("C", queue="other")
    for queues in (["q"], ["q", "other"]):
        for _ in range(2):
            assert kit.store.reserve(Reserve(queues=queues, limit=0, worker="w")).deliveries == []
            assert kit.store.reserve(Reserve(queues=[], limit=9, worker="w")).deliveries == []
    assert kit.claim(9, "q", "other") == ["C", "A", "B"]


def reserve_gives_a_batch_as_it_gives_singles(kit: Kit) -> None:
    """A batch of n brings the same tasks in the same order as n single claims (§5)."""
    for queue in ("batch", "single"):
        for number, (priority, code) in enumerate(
            [(0, None), (5, "x"), (0, "x"), (5, "y"), (0, "!z"), (9, "!v"), (5, None), (0, "y"), (5, "x"), (0, None)]
        ):
            kit.publish(f"{queue} {number}", queue=queue, priority=priority, partition=code)
    batch = [name.split()[1] for name in kit.claim(10, "batch")]
    singles = [name.split()[1] for name in kit.claim_one_by_one(10, "single")]
    assert batch == singles
    assert len(batch) == 10


def retry_keeps_priority_and_place(kit: Kit) -> None:
    """A retried task keeps its priority and stands in a strict queue where its seq puts it (§2, §3, §4)."""
    kit.publish("A", "B", priority=3)
    kit.publish("C", priority=3)
    assert kit.claim() == ["A"]
    kit.retry("A", delay=5)
    kit.advance(5)
    assert kit.info("A").priority == 3
    assert kit.claim_one_by_one(3) == ["A", "B", "C"]


def defer_keeps_the_place(kit: Kit) -> None:
    """A deferred task stands where its seq puts it once it is due (§4)."""
    kit.publish("A", "B")
    kit.claim()
    kit.defer("A", delay=5)
    kit.advance(5)
    assert kit.claim_one_by_one(2) == ["A", "B"]


def hand_back_keeps_the_order(kit: Kit) -> None:
    """Handed-back work goes back in order and is available at once (§10.9)."""
    kit.publish("A", "B", "C", "D")
    kit.publish("urgent", priority=1)
    assert kit.claim(4) == ["urgent", "A", "B", "C"]
    for name in ("C", "urgent", "A", "B"):
        kit.hand_back(name)
    assert kit.claim_one_by_one(5) == ["urgent", "A", "B", "C", "D"]


def lost_tasks_keep_their_place(kit: Kit) -> None:
    """A task whose lease ended is claimed again before what was published after it (§4)."""
    kit.publish("A", "B")
    kit.claim()
    kit.publish("C")
    kit.lose_leases()
    assert kit.claim_one_by_one(3) == ["A", "B", "C"]


# ── aging ──


def aging_prefers_the_urgent_before_a_step_has_passed(kit: Kit) -> None:
    """Aging 30 s: priority 9 due now goes before priority 0 due 5 s ago (§4, first row)."""
    kit.configure(order="aging")
    kit.publish("A")
    kit.advance(5)
    kit.publish("B", priority=9)
    assert kit.claim_one_by_one(2) == ["B", "A"]


def aging_lets_the_old_go_before_the_urgent(kit: Kit) -> None:
    """Aging 30 s: priority 0 due 271 s ago goes before priority 9 due now (§4, second row)."""
    kit.configure(order="aging")
    kit.publish("A")
    kit.advance(271)
    kit.publish("B", priority=9)
    assert kit.claim_one_by_one(2) == ["A", "B"]


def aging_passes_over_what_is_not_due(kit: Kit) -> None:
    """Aging: priority 9 due in an hour is not eligible (§4, third row)."""
    kit.configure(order="aging")
    kit.publish("B", priority=9, delay=3600)
    kit.publish("A")
    assert kit.claim(2) == ["A"]


def aging_takes_the_earlier_available_of_one_priority(kit: Kit) -> None:
    """Aging, same priority: the earlier available_at goes first, whichever was accepted first (§4, fourth row)."""
    kit.configure(order="aging")
    kit.publish("late", delay=10)
    kit.advance(1)
    kit.publish("early", delay=5)
    kit.advance(10)
    assert kit.claim_one_by_one(2) == ["early", "late"]


def aging_takes_the_earlier_accepted_of_equal_times(kit: Kit) -> None:
    """Aging, same priority and available_at: the earlier accepted goes first (§4, fourth row)."""
    kit.configure(order="aging")
    kit.publish("A", delay=10)
    kit.advance(5)
    kit.publish("B", delay=5)
    kit.advance(5)
    kit.publish("C")
    assert kit.claim_one_by_one(3) == ["A", "B", "C"]


def aging_takes_the_earlier_available_at_equal_dispatch(kit: Kit) -> None:
    """Aging: at equal dispatch_at the earlier available_at, the smaller priority, goes first (§4)."""
    kit.configure(order="aging")
    kit.publish("old 0")
    kit.advance(30)
    kit.publish("1")
    kit.advance(60)
    kit.publish("new 3", priority=3)
    kit.publish("new 2", priority=2, delay=0)
    assert kit.claim_one_by_one(4) == ["old 0", "new 3", "1", "new 2"]


def aging_knows_no_bound_but_the_steps(kit: Kit) -> None:
    """Under newer urgent work for ever, nothing waits longer than its 270 s of disadvantage (§4)."""
    kit.configure(order="aging")
    kit.publish("patient")
    done: list[str] = []
    for number in range(40):
        kit.publish(f"urgent {number}", priority=9)
        done += kit.claim()
        kit.ack(done[-1])
        kit.advance(10)
    assert done.index("patient") * 10 == 270


def aging_step_is_a_setting(kit: Kit) -> None:
    """Each level is worth one step of the queue's own length (§4)."""
    kit.configure(order="aging", aging_step=2)
    kit.publish("A")
    kit.advance(17)
    kit.publish("B", priority=9)
    kit.advance(2)
    kit.publish("C", priority=9)
    assert kit.claim_one_by_one(3) == ["B", "A", "C"]


def aging_shows_the_dispatch_time(kit: Kit) -> None:
    """``dispatch_at`` is ``available_at - priority * step`` (§4)."""
    kit.configure(order="aging")
    kit.publish("A", priority=2, delay=10)
    info = kit.info("A")
    assert info.dispatch_at == info.available_at - 60_000_000


def aging_says_so_on_the_delivery(kit: Kit) -> None:
    """A worker learns that it must keep claim order (library.md, worker)."""
    kit.configure(order="aging")
    kit.publish("A", priority=2)
    kit.claim()
    assert kit.delivery("A").aging


def aging_retry_stands_by_its_new_time(kit: Kit) -> None:
    """An aging retry recomputes dispatch_at from its new available_at (§4)."""
    kit.configure(order="aging")
    kit.publish("A")
    kit.advance(1)
    kit.publish("B")
    kit.advance(1)
    kit.claim()
    kit.retry("A")
    kit.publish("C", delay=1)
    kit.advance(1)
    assert kit.claim_one_by_one(3) == ["B", "A", "C"]


def aging_retry_that_blocks_its_partition_stands_by_its_new_time(kit: Kit) -> None:
    """Only an ordered partition is excepted: a retry that blocks a parallel one recomputes dispatch_at, too (§4)."""
    kit.configure(order="aging")
    kit.publish("A", partition="x")
    kit.claim()
    kit.advance(1)
    kit.publish("B", partition="x")
    kit.retry("A", delay=10, partition=True)
    kit.advance(10)
    assert kit.claim_one_by_one(2) == ["B", "A"]


def aging_retry_in_an_ordered_partition_keeps_its_key(kit: Kit) -> None:
    """In an ordered partition of an aging queue the retried task keeps its key (§4)."""
    kit.configure(order="aging")
    kit.publish("A", partition="!x")
    kit.advance(1)
    kit.publish("B", partition="!y")
    kit.publish("A2", partition="!x")
    kit.advance(1)
    kit.claim()
    kit.retry("A")
    assert kit.claim_one_by_one(2) == ["A", "B"]


def aging_hand_back_keeps_the_place(kit: Kit) -> None:
    """In an aging queue, too, handed-back work goes back in order (§10.9)."""
    kit.configure(order="aging")
    wanted = names("T", 4)
    for name in wanted:
        kit.publish(name)
        kit.advance(1)
    kit.claim(3)
    for name in ("T2", "T3", "T1"):
        kit.hand_back(name)
    assert kit.claim_one_by_one(4) == wanted


def aging_gives_a_batch_as_it_gives_singles(kit: Kit) -> None:
    """A batch from an aging queue with partitions is n single claims (§5)."""
    kit.configure("batch", order="aging")
    kit.configure("single", order="aging")
    for number, (priority, code) in enumerate(
        [(0, "x"), (1, None), (9, "y"), (0, "!z"), (3, "x"), (0, "y"), (9, None)]
    ):
        for queue in ("batch", "single"):
            kit.publish(f"{queue} {number}", queue=queue, priority=priority, partition=code)
        kit.advance(40)
    batch = [name.split()[1] for name in kit.claim(7, "batch")]
    assert batch == [name.split()[1] for name in kit.claim_one_by_one(7, "single")]
    assert len(batch) == 7
