"""``Partition(max_running=N)``: how many of a parallel partition's tasks run at once (§6)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.queue import Limit
from taskmq.testing.conformance.kit import LEASE, Kit, names, needs, occupy
from taskmq.transport.base import Wait


def partition_max_running_is_never_exceeded(kit: Kit) -> None:
    """Of a parallel partition with max_running=N at most N tasks run, over all batches and workers (§6)."""
    kit.publish(*names("T", 6), partition="x", most=3)
    assert kit.claim(2, worker="one") == ["T1", "T2"]
    assert kit.claim(9, worker="two") == ["T3"]
    assert kit.claim(9) == []
    kit.ack("T2")
    assert kit.claim(9) == ["T4"]


def partition_max_running_stops_nobody_else(kit: Kit) -> None:
    """A full partition leaves the workers to the rest of its queue and to other queues (§6, §8)."""
    kit.publish(*names("X", 3), partition="x", most=1, priority=9)
    kit.publish(*names("Y", 2), partition="y")
    kit.publish("plain")
    kit.publish("other", queue="other")
    assert sorted(kit.claim(9, "q", "other")) == ["X1", "Y1", "Y2", "other", "plain"]


def partition_max_running_is_freed_by_every_end(kit: Kit) -> None:
    """Ack, retry, defer, hand-back, death and a lost lease each free a place, once; places are kept in line (§6)."""
    kit.publish("A", "B", "C", partition="x", most=1, max_attempts=99)
    ends: list[Callable[[], object]] = [
        *(lambda: kit.retry("A"), lambda: kit.defer("A", 0), lambda: kit.hand_back("A"), kit.lose_leases),
    ]
    for end in ends:
        assert kit.claim(9) == ["A"]
        assert kit.claim(9) == []
        end()
    assert kit.claim(9) == ["A"]
    kit.die("A")
    assert kit.claim(9) == ["B"]
    kit.ack("B")
    assert kit.claim(9) == ["C"]


def partition_max_running_survives_lost_leases(kit: Kit) -> None:
    """A dead worker's tasks free their places when their leases end, so the next claim has room (§6, §2)."""
    kit.publish(*names("T", 4), partition="x", most=2, max_attempts=9)
    kit.claim(2)
    kit.advance(LEASE)
    assert kit.claim(9) == ["T1", "T2"]
    assert kit.claim(9) == []


def partition_max_running_counts_a_retry_s_delay_as_free(kit: Kit) -> None:
    """A task that waits for its retry holds no place (§6)."""
    kit.publish("A", "B", partition="x", most=1)
    kit.claim()
    kit.retry("A", delay=60)
    assert kit.claim(9) == ["B"]


def partition_max_running_travels_with_its_tasks(kit: Kit) -> None:
    """The newest task that names a number sets it; one that names none keeps it (§11, as for the weight)."""
    kit.publish("A", partition="x", most=1)
    kit.publish("B", "C", "D", partition="x")
    assert kit.claim(9) == ["A"]
    kit.publish("E", partition="x", most=3)
    assert kit.claim(9) == ["B", "C"]
    kit.publish("F", partition="x", most=1)
    kit.ack("A", "B")
    assert kit.claim(9) == []
    kit.ack("C")
    assert kit.claim(9) == ["D"]


def partition_max_running_of_a_delayed_task_is_set_when_it_is_due(kit: Kit) -> None:
    """A task that is not in line yet changes nothing of its partition (§11)."""
    kit.publish("A", "B", "C", partition="x", most=1)
    kit.publish("later", partition="x", most=3, delay=10)
    assert kit.claim(9, lease=3600) == ["A"]
    kit.advance(10)
    assert kit.claim(9) == ["B", "C"]


def partition_max_running_comes_back_with_a_replay(kit: Kit) -> None:
    """A replayed task brings what it was published with (§11, §2)."""
    kit.publish("A", partition="x", most=1)
    kit.claim()
    kit.die("A")
    kit.publish("B", "C", partition="x")
    assert kit.claim(9) == ["B", "C"]
    assert kit.replay("A") == [True]
    kit.ack("B")
    assert kit.claim(9) == []
    kit.ack("C")
    assert kit.claim(9) == ["A"]


def partition_max_running_is_shown(kit: Kit) -> None:
    """A partition shows its number; None where there is none (base.py, PartitionInfo)."""
    kit.publish("A", partition="x", most=4)
    kit.publish("B", partition="y")
    shown = [(info.code, info.max_running) for info in kit.store.partitions("q")]
    assert shown == [("x", 4), ("y", None)]


def partition_max_running_is_forgotten_with_its_partition(kit: Kit) -> None:
    """An empty partition leaves nothing behind, its number neither (§6)."""
    kit.publish("A", partition="x", most=1)
    assert kit.work_off() == ["A"]
    kit.publish("B", "C", partition="x")
    assert kit.claim(9) == ["B", "C"]


def partition_max_running_is_each_partition_s_own(kit: Kit) -> None:
    """Two partitions, and two of one code in two queues, count apart (§6, §1)."""
    kit.publish(*names("x", 3), partition="x", most=1)
    kit.publish(*names("y", 3), partition="y", most=2)
    kit.publish(*names("z", 3), queue="other", partition="x", most=2)
    assert sorted(kit.claim(9, "q", "other")) == ["x1", "y1", "y2", "z1", "z2"]


def partition_max_running_bounds_a_batch_as_singles(kit: Kit) -> None:
    """A full partition gives its turns to the others, in a batch as in single claims (§5, §6)."""
    answers = []
    for batch in (False, True):
        kit.store.flush()
        kit.publish(*names("x", 4), partition="x", most=2)
        kit.publish(*names("y", 4), partition="y", most=3)
        kit.publish(*names("p", 4))
        answers.append(kit.claim(12) if batch else kit.claim_one_by_one(12))
    assert answers[0] == answers[1]
    assert len(answers[0]) == 2 + 3 + 4


def partition_max_running_costs_no_turn(kit: Kit) -> None:
    """A partition that has room again joins now: it neither catches up nor waits its missed turns out (§6)."""
    kit.publish(*names("x", 5), partition="x", most=1)
    kit.publish(*names("y", 9), partition="y")
    assert kit.claim(5) == ["x1", "y1", "y2", "y3", "y4"]
    kit.ack("x1")
    assert kit.claim(3) == ["x2", "y5", "y6"]


def partition_max_running_makes_waiting_tasks_no_work(kit: Kit) -> None:
    """``wait`` does not return for the tasks of a full partition, and does when it has room (base.py, wait)."""
    kit.publish("A", "B", partition="x", most=1)
    kit.claim(lease=3600)
    assert not kit.store.wait(Wait(queues=["q"], timeout=0.02))
    kit.ack("A")
    assert kit.store.wait(Wait(queues=["q"], timeout=0.02))


def partition_max_running_holds_in_an_aging_queue(kit: Kit) -> None:
    """In an aging queue, too, a full partition is passed over and its order kept (§6, §4)."""
    kit.configure(order="aging")
    kit.publish(*names("x", 3), partition="x", most=1)
    kit.publish(*names("y", 2), partition="y")
    assert kit.claim(9) == ["x1", "y1", "y2"]
    kit.ack("x1")
    assert kit.claim(9) == ["x2"]


@needs("shared")
def partition_max_running_is_exact_across_stores(kit: Kit) -> None:
    """The count is in the store: two processes together do not exceed it (§6, §8)."""
    other = kit.open()
    kit.publish(*names("T", 6), partition="x", most=3)
    assert kit.claim(2) == ["T1", "T2"]
    assert kit.claim(9, store=other) == ["T3"]
    kit.ack("T1")
    assert kit.claim(9, store=other) == ["T4"]


def partition_max_running_raised_by_a_parked_task_makes_room(kit: Kit) -> None:
    """A number that comes with a task which is parked at once is set like any other: there is room now (§6, §11)."""
    occupy(kit, Limit("k", 1), "other")
    kit.publish("A", "B", partition="x", most=1)
    assert kit.claim(9) == ["A"]
    kit.publish("parked", partition="x", most=2, limit=Limit("k", 1))
    assert kit.claim(9) == ["B"]


def partition_max_running_lowered_by_a_parked_task_is_no_work(kit: Kit) -> None:
    """A partition that such a task has filled gives ``wait`` nothing to return for (base.py, wait)."""
    occupy(kit, Limit("k", 1), "other")
    kit.publish("A", "B", partition="x", most=2)
    assert kit.claim(lease=3600) == ["A"]
    kit.publish("parked", partition="x", most=1, limit=Limit("k", 1))
    assert kit.claim(9) == []
    assert not kit.store.wait(Wait(queues=["q"], timeout=0.02))
