"""Runs: consecutive tasks of one ordered partition in one worker's hands (§6)."""

from __future__ import annotations

from taskmq.outcome import Ack, Dead, Defer, Outcome, Retry
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import LEASE, Kit, names


def _run(kit: Kit, count: int = 3) -> list[str]:
    """A run of so many tasks of ``!x``, claimed."""
    kit.publish(*names("T", count), partition="!x")
    claimed = kit.claim(count)
    assert claimed == names("T", count)
    return claimed


def reserve_fills_empty_places_with_followers(kit: Kit) -> None:
    """Places that would stay empty take followers of this batch's ordered partitions, one each in turn (§5, §6)."""
    for code in ("!x", "!y"):
        kit.publish(*names(f"{code} ", 3), partition=code)
    assert kit.claim(5) == ["!x 1", "!y 1", "!x 2", "!y 2", "!x 3"]


def reserve_prefers_heads_to_followers(kit: Kit) -> None:
    """Sixteen free slots over sixteen partitions get sixteen heads, not one run of sixteen (§6)."""
    codes = [f"!p{number:02}" for number in range(16)]
    for code in codes:
        kit.publish(*names(f"{code} ", 16), partition=code)
    assert sorted(kit.claim(16)) == [f"{code} 1" for code in codes]


def reserve_takes_no_follower_while_anything_is_eligible(kit: Kit) -> None:
    """Followers come only when nothing else is eligible, of whatever priority and queue (§5)."""
    kit.publish("x1", "x2", partition="!x", priority=9)
    kit.publish("low")
    kit.publish("other", queue="r")
    assert kit.claim(4, "q", "r") == ["x1", "other", "low", "x2"]


def reserve_takes_no_follower_of_an_earlier_claim(kit: Kit) -> None:
    """Only partitions claimed in this very batch have followers (§5)."""
    kit.publish("x1", "x2", partition="!x")
    kit.claim(1)
    kit.publish("y1", "y2", partition="!y")
    assert kit.claim(4) == ["y1", "y2"]


def reserve_counts_followers_as_served(kit: Kit) -> None:
    """``served`` grows by one for each follower (§11)."""
    _run(kit, 4)
    assert kit.stats().served == 4


def settle_follows_the_run(kit: Kit) -> None:
    """The ack of its first makes the next of a run current (§11)."""
    for name in _run(kit):
        kit.ack(name)
    assert kit.states("T1", "T2", "T3") == [TaskState.SUCCEEDED] * 3


def settle_takes_a_whole_run_at_once(kit: Kit) -> None:
    """One settle may end a whole run, in its order (§6)."""
    kit.ack(*_run(kit))
    assert kit.partition("!x") is None


def settle_refuses_a_follower_before_its_head(kit: Kit) -> None:
    """A follower settled before its head is refused like a stale epoch, whatever the outcome (§6)."""
    _run(kit)
    outcomes: list[Outcome] = [Ack(), Retry(0), Defer(0), Dead("failed")]
    assert [kit.settle("T2", outcome) for outcome in outcomes] == [False] * 4
    assert kit.settle_all([("T3", Ack()), ("T1", Ack()), ("T2", Ack())]) == [False, True, True]
    assert kit.states("T1", "T2", "T3") == [TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.RUNNING]


def settle_keeps_a_partition_in_hands_until_its_run_is_over(kit: Kit) -> None:
    """The partition is eligible again when no task of it is in a worker's hands (§11)."""
    kit.publish("A", "B", "C", partition="!x")
    assert kit.claim(2) == ["A", "B"]
    kit.ack("A")
    assert kit.claim() == []
    kit.publish("urgent", partition="!x", priority=9)
    assert kit.claim() == []
    kit.ack("B")
    assert kit.claim() == ["urgent"]


def retry_hands_the_rest_of_a_run_back(kit: Kit) -> None:
    """If a task of a run is retried, the rest goes back in place, unblamed, and its deliveries are stale (§6)."""
    _run(kit)
    kit.ack("T1")
    kit.retry("T2", delay=10)
    assert kit.states("T2", "T3") == [TaskState.RETRYING, TaskState.QUEUED]
    assert not kit.settle("T3", Ack())
    assert kit.claim(9) == []
    kit.advance(10)
    assert kit.claim(9) == ["T2", "T3"]
    assert (kit.delivery("T2").attempt, kit.delivery("T3").attempt) == (2, 1)


def defer_hands_the_rest_of_a_run_back(kit: Kit) -> None:
    """If a task of a run is deferred, the rest goes back, and the partition waits (§6)."""
    _run(kit)
    kit.defer("T1", delay=10)
    assert (kit.states("T2", "T3"), kit.claim(9)) == ([TaskState.QUEUED] * 2, [])
    kit.advance(10)
    assert kit.claim(9) == ["T1", "T2", "T3"]


def hand_back_takes_what_is_behind_along(kit: Kit) -> None:
    """Everything behind a handed-back task of a run goes back with it; what is before it stays (outcome.py)."""
    _run(kit)
    kit.hand_back("T2")
    assert kit.states("T1", "T2", "T3") == [TaskState.RUNNING, TaskState.QUEUED, TaskState.QUEUED]
    assert kit.claim(9) == []
    kit.ack("T1")
    assert kit.claim(9) == ["T2", "T3"]
    assert [kit.delivery(name).attempt for name in ("T2", "T3")] == [1, 1]


def hand_back_of_a_run_in_any_order_keeps_its_order(kit: Kit) -> None:
    """A run handed back from its end is claimable at once, in order (§10.9)."""
    _run(kit)
    for name in ("T3", "T2", "T1"):
        kit.hand_back(name)
    assert kit.claim(9) == ["T1", "T2", "T3"]


def die_leaves_the_rest_of_a_run_in_hands(kit: Kit) -> None:
    """With on_dead="continue" the worker goes on with the next task of its run (§6)."""
    _run(kit)
    kit.die("T1")
    assert kit.claim(9) == []
    kit.ack("T2", "T3")


def die_with_hold_hands_the_rest_of_a_run_back(kit: Kit) -> None:
    """With on_dead="hold" the rest of the run goes back in place, unblamed, and stays there (§6)."""
    kit.configure(on_dead="hold")
    _run(kit)
    kit.die("T1")
    assert (kit.states("T2", "T3"), kit.claim(9)) == ([TaskState.QUEUED] * 2, [])
    assert [kit.info(name).attempt for name in ("T2", "T3")] == [0, 0]


def lost_head_hands_the_rest_of_a_run_back(kit: Kit) -> None:
    """If the head's lease ends, what follows goes back unblamed, even with leases that were renewed (§6)."""
    _run(kit)
    kit.advance(LEASE - 1)
    assert kit.renew("T2").lease_until is not None
    kit.renew("T3")
    kit.advance(2)
    kit.maintain()
    assert kit.states("T1", "T2", "T3") == [TaskState.QUEUED] * 3
    assert not kit.settle("T2", Ack())
    assert kit.claim(9) == ["T1", "T2", "T3"]
    assert [kit.delivery(name).attempt for name in ("T1", "T2", "T3")] == [2, 1, 1]


def lost_follower_leaves_its_head_in_hands(kit: Kit) -> None:
    """If only a follower's lease ends, its head stays with the worker, and nobody else gets the partition (§6)."""
    _run(kit)
    kit.advance(LEASE - 1)
    kit.renew("T1", started=True)
    kit.advance(2)
    kit.maintain()
    assert kit.states("T1", "T2", "T3") == [TaskState.RUNNING, TaskState.QUEUED, TaskState.QUEUED]
    assert kit.claim(9) == []
    kit.ack("T1")
    assert kit.claim(9) == ["T2", "T3"]


def cancel_of_a_follower_takes_effect_when_the_run_breaks(kit: Kit) -> None:
    """A cancelled follower that goes back with its run is CANCELLED; the others stay in order (§2)."""
    _run(kit)
    assert kit.cancel("T2") == [TaskState.RUNNING]
    kit.retry("T1")
    assert kit.state("T2") is TaskState.CANCELLED
    assert kit.claim(9) == ["T1", "T3"]


def runs_start_in_publish_order_for_every_prefetch(kit: Kit) -> None:
    """First starts equal publish order for every prefetch, with retries and hand-backs in between (§10.3)."""
    for prefetch in (1, 2, 3, 7, 16):
        wanted = names(f"n{prefetch} ", 20)
        kit.publish(*wanted, partition="!x", max_attempts=9)
        started: list[str] = []
        for step in range(200):
            claimed = kit.claim(prefetch)
            if not claimed:
                break
            for position, name in enumerate(claimed):
                if (step + position) % 5 == 4:
                    kit.hand_back(name)
                    break
                started += [] if name in started else [name]
                if (step + position) % 4 == 3 and kit.delivery(name).attempt < 3:
                    kit.retry(name)
                    break
                kit.ack(name)
        assert started == wanted


def runs_of_two_workers_never_overlap(kit: Kit) -> None:
    """At most one worker holds an ordered partition, however many ask for however much (§6)."""
    kit.publish(*names("T", 30), partition="!x")
    done: list[str] = []
    for _ in range(30):
        claimed = kit.claim(4, worker="one")
        assert kit.claim(4, worker="two") == []
        for name in claimed:
            kit.ack(name)
            assert name == claimed[-1] or kit.claim(4, worker="two") == []
            done.append(name)
            if name == claimed[-1]:
                more = kit.claim(3, worker="two")
                kit.ack(*more)
                done += more
    assert done == names("T", 30)
