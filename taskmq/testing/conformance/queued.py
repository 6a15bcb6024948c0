"""``max_queued``: how many tasks may wait in a queue, and what a publish beyond it gets (§8)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.errors import IdempotencyConflict, QueueFull
from taskmq.message import Message
from taskmq.testing.conformance.kit import LEASE, Kit, names, needs


def _full(kit: Kit, *messages: Message) -> QueueFull:
    """Publish this batch into a queue that has no room for it; the refusal."""
    try:
        kit.publish_all(messages)
    except QueueFull as refusal:
        return refusal
    raise AssertionError("the publish was accepted beyond max_queued")


def _room(kit: Kit, queue: str = "q", most: int = 9) -> int:
    """How many tasks the queue still takes; fills it."""
    for number in range(most):
        try:
            kit.publish(f"filler {kit.now} {number}", queue=queue, delay=3600)
        except QueueFull:
            return number
    return most


def publish_beyond_max_queued_is_refused(kit: Kit) -> None:
    """A publish above max_queued is QueueFull, which says of what; nothing is stored (§8; base.py)."""
    kit.configure(max_queued=2)
    kit.publish("A", "B")
    refusal = _full(kit, kit.message("C"))
    assert (refusal.queue, refusal.max_queued, refusal.queued, refusal.retryable) == ("q", 2, 2, True)
    assert kit.look("C") is None
    assert kit.claim(9) == ["A", "B"]


def publish_refuses_a_batch_that_does_not_fit_as_a_whole(kit: Kit) -> None:
    """Of a batch that does not fit nothing is stored, not even what would fit (§8; base.py: all or none)."""
    kit.configure(max_queued=3)
    kit.publish("A")
    _full(kit, *(kit.message(name) for name in "BCD"))
    assert kit.find() == ["A"]
    kit.publish("E", "F")
    assert kit.claim(9) == ["A", "E", "F"]


def publish_refuses_a_batch_for_one_full_queue_of_several(kit: Kit) -> None:
    """One full queue refuses the messages for the other queues of the batch, too (base.py: all or none)."""
    kit.configure("full", max_queued=1)
    kit.publish("A", queue="full")
    refusal = _full(kit, kit.message("B", "free"), kit.message("C", "full"))
    assert refusal.queue == "full"
    assert kit.find() == ["A"]


def publish_counts_every_task_that_waits(kit: Kit) -> None:
    """Scheduled, queued, retrying, parked, blocked, paused and held-up tasks all wait, and count (§8)."""
    kit.publish("retrying", "blocked", partition="x", max_attempts=9)
    kit.claim(2)
    kit.retry("retrying", delay=3600)
    kit.retry("blocked", delay=3600, partition=True)
    kit.publish("scheduled", delay=3600)
    kit.store.pause_partition("q", "!p", True)
    kit.publish("paused", partition="!p")
    kit.publish("queued")
    kit.configure(max_queued=7)
    assert _room(kit) == 2


def publish_counts_nothing_that_is_in_hands_or_over(kit: Kit) -> None:
    """Tasks in workers' hands and ended ones take no room (§8)."""
    kit.configure(max_queued=3)
    kit.publish("done", "dead", "running")
    kit.claim(3)
    kit.ack("done")
    kit.die("dead")
    kit.publish("cancelled")
    kit.cancel("cancelled")
    assert _room(kit) == 3


def publish_finds_the_room_that_claims_make(kit: Kit) -> None:
    """Each claimed task makes room for one more, at once (§8)."""
    kit.configure(max_queued=2)
    kit.publish("A", "B")
    kit.claim()
    kit.publish("C")
    _full(kit, kit.message("D"))
    assert kit.claim(9) == ["B", "C"]


def publish_finds_the_room_of_expired_tasks(kit: Kit) -> None:
    """What a claim or housekeeping has expired makes room (§8, §2)."""
    kit.configure(max_queued=2)
    kit.publish("A", "B", expires=5)
    kit.advance(5)
    kit.maintain()
    assert _room(kit) == 2


def publish_counts_what_came_back(kit: Kit) -> None:
    """What is handed back, retried or lost waits again and takes room again (§8)."""
    kit.configure(max_queued=3)
    kit.publish("A", "B", "C", max_attempts=9)
    kit.claim_one_by_one(3)
    kit.hand_back("A")
    kit.retry("B")
    kit.lose_leases()
    assert _room(kit) == 0


def max_queued_refuses_nobody_who_comes_back(kit: Kit) -> None:
    """A gate never loses a claimed task: retries, hand-backs, lost leases and replays enter a full queue (§8)."""
    kit.configure(max_queued=1)
    for number, end in enumerate(_ways_back(kit)):
        kit.store.flush()
        kit.configure(max_queued=1)
        kit.publish("A", max_attempts=9)
        kit.claim()
        kit.publish(f"full {number}", delay=3600)
        end()
        assert kit.claim(9) == ["A"], f"way {number} back"


def _ways_back(kit: Kit) -> list[Callable[[], object]]:
    def replay() -> None:
        kit.die("A")
        assert kit.replay("A") == [True]

    return [
        *(lambda: kit.retry("A"), lambda: kit.defer("A", 0), lambda: kit.hand_back("A")),
        *(lambda: kit.advance(LEASE), replay),
    ]


def max_queued_knows_duplicates_before_it_counts(kit: Kit) -> None:
    """A known key is answered though the queue is full: nothing new is to be stored (§7, §8)."""
    kit.configure(max_queued=1)
    (first,) = kit.publish("A", key="k")
    (again,) = kit.publish("B", key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    assert kit.claim(9) == ["A"]


def max_queued_lets_a_publish_be_sent_again(kit: Kit) -> None:
    """A publish whose answer was lost may be sent again though its tasks have filled the queue (base.py, publish)."""
    kit.configure(max_queued=2)
    batch = [kit.message("A"), kit.message("B")]
    kit.publish_all(batch)
    assert [receipt.duplicate for receipt in kit.publish_all(batch)] == [True, True]


def max_queued_counts_only_what_is_new_in_a_batch(kit: Kit) -> None:
    """Duplicates, of the store or inside the batch, take no room in it (§7, §8)."""
    kit.configure(max_queued=3)
    kit.publish("A", key="a")
    batch = [kit.message(name, key=key) for name, key in (("A2", "a"), ("B", "b"), ("B2", "b"), ("C", None))]
    assert [receipt.duplicate for receipt in kit.publish_all(batch)] == [True, False, True, False]
    _full(kit, kit.message("A3", key="a"), kit.message("D"))
    assert kit.claim(9) == ["A", "B", "C"]


def max_queued_comes_after_a_conflict(kit: Kit) -> None:
    """A key with other content conflicts, full or not: sending again later would not help (§7)."""
    kit.configure(max_queued=1)
    kit.publish("A", key="k")
    try:
        kit.publish("B", key="k", args=[2])
    except IdempotencyConflict as refusal:
        conflict = refusal
    else:
        raise AssertionError("a conflicting key was accepted")
    assert conflict.task_id == kit.id("A")


def max_queued_keeps_no_key_of_what_it_refused(kit: Kit) -> None:
    """A refused message has left nothing: its key is free for other content (§7, §8)."""
    kit.configure(max_queued=1)
    kit.publish("A")
    _full(kit, kit.message("B", key="k", args=[1]))
    kit.claim()
    assert not kit.publish("C", key="k", args=[2])[0].duplicate


def max_queued_may_change_at_any_time(kit: Kit) -> None:
    """Lowered, it refuses until enough have left; what waits stays; raised or removed, it lets in at once (§8)."""
    kit.publish(*names("T", 5))
    kit.configure(max_queued=3)
    assert _full(kit, kit.message("X")).queued == 5
    assert kit.claim(2) == ["T1", "T2"]
    _full(kit, kit.message("Y"))
    kit.claim()
    kit.publish("A")
    kit.configure(max_queued=4)
    kit.publish("B")
    kit.configure()
    kit.publish("C")
    assert kit.claim(9) == ["T4", "T5", "A", "B", "C"]


def max_queued_is_each_queue_s_own(kit: Kit) -> None:
    """A full queue refuses nobody else's publish (§8)."""
    kit.configure("a", max_queued=1)
    kit.publish("A", queue="a")
    kit.publish("B", "C", queue="b")
    assert kit.claim(9, "b") == ["B", "C"]


@needs("shared")
def max_queued_is_exact_across_stores(kit: Kit) -> None:
    """The count is in the store: two processes together do not exceed it (§8)."""
    other = kit.open()
    kit.configure(max_queued=2)
    kit.publish("A")
    kit.publish("B", store=other)
    _full(kit, kit.message("C"))
    kit.claim(store=other)
    kit.publish("D")
    assert _room(kit) == 0
