"""Concurrency limits by key: ``limit=Limit("user:7", 2)`` (§8). Who waits for a slot, and where: parking.py."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import LEASE, Kit, names, needs
from taskmq.transport.base import LimitInfo, Wait

ONE = Limit("k", 1)
TWO = Limit("k", 2)


def limit_lets_n_run_at_once(kit: Kit) -> None:
    """Of tasks with ``Limit("k", 2)`` two run at once, over all batches and workers (§8)."""
    kit.publish(*names("T", 5), limit=TWO)
    assert kit.claim(1, worker="one") == ["T1"]
    assert kit.claim(9, worker="two") == ["T2"]
    assert kit.claim(9) == []
    kit.ack("T1")
    assert kit.claim(9) == ["T3"]


def limit_holds_inside_a_batch(kit: Kit) -> None:
    """One batch takes no more than n of a key (§8)."""
    kit.publish(*names("T", 5), limit=TWO)
    assert kit.claim(9) == ["T1", "T2"]


def limit_counts_over_all_queues(kit: Kit) -> None:
    """A key's scope is the namespace: tasks of two queues share its slots, also within a batch (§8)."""
    for queue in ("a", "b", "c"):
        kit.publish(*names(queue, 2), queue=queue, limit=TWO)
    assert kit.claim(9, "a", "b", "c") == ["a1", "b1"]
    kit.ack("b1")
    assert kit.claim(9, "c") == ["c1"]
    assert kit.claim(9, "a", "b") == []
    kit.ack("a1", "c1")
    assert sorted(kit.claim(9, "a", "b", "c")) == ["a2", "b2"]


def limit_keys_are_independent(kit: Kit) -> None:
    """A full key holds back no task of another key, and none without a limit (§8)."""
    kit.publish("A1", "A2", limit=Limit("a", 1))
    kit.publish("B1", "B2", limit=Limit("b", 1))
    kit.publish("C1", "C2")
    assert kit.claim(9) == ["A1", "B1", "C1", "C2"]


def limit_keys_are_compared_as_bytes(kit: Kit) -> None:
    """Case, a blank at the end and the form of an accent make another key (§8, names)."""
    keys = ["k", "K", "k ", "\u00e9", "e\u0301"]
    for number, key in enumerate(keys):
        kit.publish(*names(f"{number}.", 2), limit=Limit(key, 1))
    assert kit.claim(99) == [f"{number}.1" for number in range(len(keys))]
    assert [info.key for info in kit.store.limits()] == sorted(keys, key=lambda key: key.encode())


def limit_n_is_each_task_s_own(kit: Kit) -> None:
    """A task starts only while fewer than its own limit of that key run (§8)."""
    kit.publish("one", limit=Limit("k", 1))
    kit.publish("three", "3", limit=Limit("k", 3))
    kit.publish("two", limit=Limit("k", 2))
    assert kit.claim(9) == ["one", "three", "3"]
    kit.ack("one")
    assert kit.claim(9) == []
    kit.ack("three")
    assert kit.claim(9) == ["two"]
    kit.ack("3")
    kit.publish("another", limit=Limit("k", 1))
    assert kit.claim(9) == []
    kit.ack("two")
    assert kit.claim(9) == ["another"]


def limit_n_lets_the_larger_pass_the_smaller(kit: Kit) -> None:
    """Where the first in line may not start, a later one whose limit is larger may (§8)."""
    kit.publish("running", limit=TWO)
    kit.claim()
    kit.publish("one", limit=ONE)
    kit.publish("two", limit=TWO)
    assert kit.claim(9) == ["two"]
    kit.ack("two")
    assert kit.claim(9) == []
    kit.ack("running")
    assert kit.claim(9) == ["one"]


def limit_counts_what_is_claimed(kit: Kit) -> None:
    """What is claimed counts as running, started or not (§8)."""
    kit.publish("A", "B", "C", limit=TWO)
    kit.claim(2)
    kit.start("A")
    assert kit.claim() == []
    assert kit.limit("k") == (2, 1)


def limit_is_freed_by_every_end(kit: Kit) -> None:
    """Ack, retry, defer, hand-back, death, a pending cancel and a lost lease each free a slot, once (§8)."""

    def cancel() -> None:
        kit.cancel("A")
        kit.retry("A")

    ends: list[Callable[[], object]] = [
        *(lambda: kit.ack("A"), lambda: kit.retry("A", delay=60), lambda: kit.defer("A", 60)),
        *(lambda: kit.die("A"), cancel),
    ]
    for number, end in enumerate(ends):
        kit.store.flush()
        kit.publish("A", "B", "C", limit=ONE, max_attempts=9)
        assert kit.claim(9) == ["A"]
        assert kit.claim(9) == []
        end()
        assert kit.claim(9) == ["B"], f"end {number}"
        assert kit.claim(9) == [], f"end {number}"
        assert kit.limit("k") == (1, 1)


def limit_is_freed_by_lost_leases(kit: Kit) -> None:
    """A dead worker's tasks free their slots when their leases end, and the next claim takes them (§8, §2)."""
    kit.publish(*names("T", 4), limit=TWO, max_attempts=9)
    kit.claim(2)
    kit.advance(LEASE)
    assert kit.claim(9) == ["T1", "T2"]
    assert kit.limit("k") == (2, 2)
    kit.lose_leases()
    assert kit.limit("k") == (0, 2)


def limit_keeps_the_place_of_what_comes_back(kit: Kit) -> None:
    """A retried or handed-back task goes before those that waited for its slot (§8, §2)."""
    kit.publish("A", "B", "C", limit=ONE, max_attempts=9)
    for end in (kit.retry, kit.hand_back):
        assert kit.claim(9) == ["A"]
        end("A")
    assert kit.work_off() == ["A", "B", "C"]


def limit_is_freed_task_by_task_in_a_run(kit: Kit) -> None:
    """Each task of a run holds a slot until it is settled; a follower whose key is full ends the run (§8, §6)."""
    kit.publish(*names("T", 4), partition="!x", limit=TWO)
    assert kit.claim(9) == ["T1", "T2"]
    assert kit.limit("k") == (2, 0)
    kit.ack("T1")
    assert kit.limit("k") == (1, 0)
    kit.ack("T2")
    assert kit.claim(9) == ["T3", "T4"]


def limit_is_freed_by_the_rest_of_a_run(kit: Kit) -> None:
    """What goes back with a broken run frees its slots, too (§8, §6)."""
    kit.publish(*names("T", 3), partition="!x", limit=Limit("k", 3), max_attempts=9)
    kit.publish("other", limit=Limit("k", 3))
    assert kit.claim(3) == ["T1", "other", "T2"]
    kit.retry("T1", delay=60)
    assert kit.limit("k") == (1, 0)


def limit_of_a_replayed_task_holds(kit: Kit) -> None:
    """A replayed dead letter has its limit again (§8, §2)."""
    _replay_into(kit, None)


def limit_of_a_task_replayed_into_another_queue_holds(kit: Kit) -> None:
    """A dead letter replayed into another queue has its limit again (§8, §2)."""
    _replay_into(kit, "other")


def _replay_into(kit: Kit, target: str | None) -> None:
    kit.publish("A", "B", limit=ONE)
    kit.claim()
    kit.die("A")
    assert kit.claim(9) == ["B"]
    assert kit.replay("A", queue=target) == [True]
    assert kit.claim(9, "q", "other") == []
    assert kit.limit("k") == (1, 1)
    kit.ack("B")
    assert kit.claim(9, "q", "other") == ["A"]


def limit_of_a_delayed_task_counts_when_it_is_due(kit: Kit) -> None:
    """A task that is not due holds no slot; when it is due it waits for one like the others (§8, §4)."""
    kit.publish("later", limit=ONE, delay=10)
    kit.publish("now", limit=ONE)
    assert kit.claim(9, lease=60) == ["now"]
    kit.advance(10)
    assert kit.claim(9) == []
    assert kit.limit("k") == (1, 1)
    kit.ack("now")
    assert kit.claim(9) == ["later"]


def limit_orders_by_age_in_an_aging_queue(kit: Kit) -> None:
    """In an aging queue the tasks of a key come in the order of their aging keys (§8, §4)."""
    kit.configure(order="aging", aging_step=30.0)
    kit.publish("running", limit=ONE)
    kit.claim(lease=3600)
    kit.publish("old", limit=ONE)
    kit.advance(20)
    kit.publish("urgent", limit=ONE, priority=1)
    kit.advance(60)
    kit.publish("late", limit=ONE, priority=1)
    kit.ack("running")
    assert kit.work_off() == ["urgent", "old", "late"]


def limit_gives_a_batch_as_it_gives_singles(kit: Kit) -> None:
    """With limits, too, a batch of n is n single claims, and leaves the same service (§5, §8)."""
    answers = []
    for batch in (False, True):
        kit.store.flush()
        for number in range(24):
            queue = "ab"[number % 2]
            limit = (None, ONE, TWO, Limit("other", 2))[number % 4]
            partition = (None, "p", "r")[number % 3]
            name = f"{number}"
            kit.publish(name, queue=queue, limit=limit, partition=partition, priority=number % 5 % 2)
        claim = kit.claim if batch else kit.claim_one_by_one
        answers.append((claim(8, "a", "b"), kit.stats("a").served, kit.stats("b").served))
    assert answers[0] == answers[1]


def limits_show_who_runs_and_who_waits(kit: Kit) -> None:
    """The keys in use, or those asked for, ordered, each with its running and its parked tasks (base.py, LimitInfo)."""
    kit.publish(*names("b", 4), limit=Limit("b", 3))
    kit.publish(*names("a", 3), limit=Limit("a", 1))
    assert kit.store.limits() == []
    kit.claim(9)
    assert kit.store.limits() == [LimitInfo(key="a", running=1, parked=2), LimitInfo(key="b", running=3, parked=1)]
    assert [info.key for info in kit.store.limits(["b", "nobody", "b"])] == ["b"]


def limits_leave_nothing_behind(kit: Kit) -> None:
    """A key with nobody running and nobody parked is forgotten, whichever way they went (base.py, limits)."""
    kit.publish(*names("T", 4), limit=ONE, retention=0)
    kit.claim(9)
    kit.cancel("T3")
    kit.publish("late", limit=ONE, expires=5)
    kit.advance(5)
    kit.maintain()
    assert kit.work_off() == []
    kit.ack("T1")
    assert kit.work_off() == ["T2", "T4"]
    assert kit.store.limits() == []


def limits_make_waiting_tasks_no_work(kit: Kit) -> None:
    """``wait`` does not return for tasks of a full key, and does when a slot is free (base.py, wait)."""
    kit.publish("A", "B", limit=ONE)
    kit.claim(9, lease=3600)
    kit.claim(9)
    assert not kit.store.wait(Wait(queues=["q"], timeout=0.02))
    kit.ack("A")
    assert kit.store.wait(Wait(queues=["q"], timeout=0.02))
    assert kit.claim() == ["B"]


def limits_tell_when_a_lease_may_free_a_slot(kit: Kit) -> None:
    """An empty claim of tasks of a full key names the end of the lease that may free it (base.py, Reserved)."""
    kit.publish("A", "B", limit=ONE)
    kit.claim()
    assert kit.reserve(9).next_due == kit.delivery("A").lease_until


@needs("shared")
def limits_are_exact_across_stores(kit: Kit) -> None:
    """The count is in the store: two processes share the slots of a key (§8)."""
    other = kit.open()
    kit.publish(*names("T", 6), limit=Limit("k", 3))
    assert kit.claim(2) == ["T1", "T2"]
    assert kit.claim(9, store=other) == ["T3"]
    kit.ack("T1")
    assert kit.claim(9, store=other) == ["T4"]
    assert other.limits() == kit.store.limits()


@needs("durable")
def limits_survive_a_restart(kit: Kit) -> None:
    """A store that is opened again knows who runs and who is parked (§8, §10.1)."""
    kit.publish("A", "B", "C", limit=ONE)
    kit.claim(9)
    kit.store.close()
    kit.store = kit.open()
    assert kit.claim(9) == []
    assert kit.limit("k") == (1, 2)
    kit.ack("A")
    assert kit.work_off() == ["B", "C"]
    assert kit.states("A", "B", "C") == [TaskState.SUCCEEDED] * 3
