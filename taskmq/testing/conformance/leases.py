"""Leases: epochs, fencing, reaping and blame (§2). What happens after many lost leases is in poison.py."""

from __future__ import annotations

from taskmq.outcome import Ack, Dead, Defer, Retry, Yield
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import LEASE, SECOND, Kit, names


def _attempts(kit: Kit, *names: str) -> list[int]:
    return [kit.info(name).attempt for name in names]


def reserve_takes_a_task_again_when_its_lease_ends(kit: Kit) -> None:
    """A task whose worker died is claimable when its lease ends, not before, and needs no maintenance for it (§2)."""
    kit.publish("A")
    kit.claim(worker="dead")
    kit.advance(LEASE - 1)
    assert kit.claim(worker="alive") == []
    kit.advance(1)
    assert kit.claim(worker="alive") == ["A"]
    assert kit.info("A").worker == "alive"


def maintain_takes_lost_tasks_back(kit: Kit) -> None:
    """Housekeeping reaps ended leases of all queues and says how many (base.py)."""
    kit.publish("A", queue="one")
    kit.publish("B", queue="two")
    kit.claim(2, "one", "two")
    assert kit.maintain().reaped == 0
    kit.advance(LEASE)
    assert kit.maintain().reaped == 2
    assert kit.states("A", "B") == [TaskState.QUEUED, TaskState.QUEUED]


def reserve_raises_the_epoch_at_every_claim(kit: Kit) -> None:
    """The epoch grows by one at every claim of a task (§1)."""
    kit.publish("A", max_attempts=9)
    for epoch in (1, 2, 3, 4):
        kit.claim()
        assert kit.delivery("A").epoch == kit.info("A").epoch == epoch
        kit.lose_leases()


def settle_with_an_old_epoch_is_refused(kit: Kit) -> None:
    """A worker that was thought dead cannot settle: its epoch is old, whoever holds the task now (§1, §10.2)."""
    kit.publish("A", max_attempts=9)
    kit.claim(worker="slow")
    stale = kit.delivery("A")
    kit.lose_leases()
    outcomes = (Ack(b"1"), Retry(0), Defer(0), Yield(), Dead("failed"))
    assert [kit.settle(stale, outcome) for outcome in outcomes] == [False] * 5
    kit.claim(worker="new")
    before = kit.info("A")
    assert [kit.settle(stale, outcome) for outcome in outcomes] == [False] * 5
    assert kit.info("A") == before
    kit.ack("A", result=2)
    assert kit.info("A").result == 2


def settle_with_an_old_epoch_of_the_same_worker_is_refused(kit: Kit) -> None:
    """The epoch decides, not the worker: an old delivery of the same worker is refused, too (§1)."""
    kit.publish("A")
    kit.claim()
    old = kit.delivery("A")
    kit.hand_back("A")
    kit.claim()
    assert not kit.settle(old, Ack())
    assert kit.settle("A", Ack())


def extend_with_an_old_epoch_is_refused(kit: Kit) -> None:
    """An extend with an older epoch tells the worker that the lease is lost, and changes nothing (§1)."""
    kit.publish("A")
    kit.claim()
    stale = kit.delivery("A")
    kit.lose_leases()
    assert kit.renew(stale).lease_until is None
    kit.claim()
    before = kit.info("A")
    assert kit.renew(stale, started=True).lease_until is None
    assert kit.info("A") == before


def extend_of_an_ended_task_is_refused(kit: Kit) -> None:
    """What has ended, is purged or was handed back has no lease to renew (§1)."""
    kit.publish("A", "B")
    kit.publish("C", retention=0)
    kit.claim(3)
    kit.ack("A", "C")
    kit.hand_back("B")
    assert [kit.renew(name).lease_until for name in "ABC"] == [None, None, None]


def extend_keeps_a_task_in_its_worker_s_hands(kit: Kit) -> None:
    """Each heartbeat renews by the delivery's own lease, counted from now (base.py)."""
    kit.publish("A")
    kit.claim(lease=10)
    for _ in range(5):
        kit.advance(8)
        assert kit.renew("A").lease_until == kit.now + 10 * SECOND
        assert kit.claim() == []
    kit.advance(10)
    assert kit.claim() == ["A"]


def extend_answers_each_lease(kit: Kit) -> None:
    """One lost lease does not keep the others from being renewed (base.py)."""
    kit.publish("A", "B", "C")
    kit.claim(3)
    kit.ack("B")
    kit.advance(5)
    assert [kit.renew(name).lease_until is None for name in "ABC"] == [False, True, False]


def reserve_uses_the_lease_of_the_queue(kit: Kit) -> None:
    """A queue's own lease goes before the worker's (defaults.md; base.py, Reserve)."""
    kit.configure("short", lease=5)
    kit.publish("A", queue="short")
    kit.publish("B", queue="long")
    kit.claim(2, "short", "long", lease=20)
    ends = [kit.delivery(name).lease_until - kit.now for name in "AB"]
    assert ends == [5 * SECOND, 20 * SECOND]
    kit.advance(5)
    assert kit.claim(2, "short", "long") == ["A"]


# ── blame ──


def lost_batch_blames_its_first(kit: Kit) -> None:
    """The first unsettled task of a batch is taken for started; the rest goes back unblamed (§2)."""
    kit.publish("A", "B", "C")
    kit.claim(3)
    kit.lose_leases()
    assert _attempts(kit, "A", "B", "C") == [1, 0, 0]


def lost_batch_blames_the_first_that_was_not_settled(kit: Kit) -> None:
    """What was settled before the worker died is not its last: the next of the batch is (§2)."""
    kit.publish("A", "B", "C")
    kit.claim(3)
    kit.ack("A")
    kit.lose_leases()
    assert _attempts(kit, "B", "C") == [1, 0]


def lost_batch_blames_what_heartbeats_named(kit: Kit) -> None:
    """Heartbeats name the started tasks: each of these consumed an attempt (§2)."""
    kit.publish("A", "B", "C", "D")
    kit.claim(4)
    kit.start("A", "C")
    kit.lose_leases()
    assert _attempts(kit, "A", "B", "C", "D") == [1, 0, 1, 0]


def lost_batches_blame_one_each(kit: Kit) -> None:
    """Two batches of one worker are judged apart (§2)."""
    kit.publish("A", "B", "C", "D")
    kit.claim(2)
    kit.claim(2)
    kit.lose_leases()
    assert _attempts(kit, "A", "B", "C", "D") == [1, 0, 1, 0]


def lost_runs_blame_one_each(kit: Kit) -> None:
    """The first unsettled task of each run is taken for started, since each run has a slot of its own (§2)."""
    for code in ("!x", "!y"):
        kit.publish(f"{code} 1", f"{code} 2", partition=code)
    kit.claim(4)
    kit.lose_leases()
    assert _attempts(kit, "!x 1", "!x 2", "!y 1", "!y 2") == [1, 0, 1, 0]


def lost_crowd_blames_one_each(kit: Kit) -> None:
    """However many leases end together, each batch and each run has one task that is taken for started (§2)."""
    kit.publish(*names("A", 250))
    kit.publish(*names("!x", 250), partition="!x", queue="runs")
    kit.publish(*names("B", 40))
    for count, queue in ((250, "q"), (250, "runs"), (40, "q")):
        kit.claim(count, queue)
    kit.ack("A1", "A2")
    kit.lose_leases()
    everyone = names("A", 250)[2:] + names("!x", 250) + names("B", 40)
    assert [name for name in everyone if kit.info(name).attempt] == ["A3", "!x1", "B1"]
    assert set(kit.states(*everyone)) == {TaskState.QUEUED}


def lost_runs_blame_beside_their_batch(kit: Kit) -> None:
    """A run and the other tasks of its batch are judged apart (§2)."""
    kit.publish("A", "B")
    kit.publish("!x 1", "!x 2", partition="!x")
    assert sorted(kit.claim(4)) == ["!x 1", "!x 2", "A", "B"]
    kit.lose_leases()
    assert _attempts(kit, "A", "B", "!x 1", "!x 2") == [1, 0, 1, 0]


def lost_rest_of_a_living_batch_is_not_blamed(kit: Kit) -> None:
    """While the first unsettled task of a batch is renewed, another one whose lease ended is not the first (§2)."""
    kit.publish("A", "B")
    kit.claim(2)
    kit.advance(LEASE - 1)
    kit.start("A")
    kit.advance(1)
    kit.maintain()
    assert kit.states("A", "B") == [TaskState.RUNNING, TaskState.QUEUED]
    assert _attempts(kit, "A", "B") == [1, 0]


def lost_attempt_is_in_the_history(kit: Kit) -> None:
    """A lost attempt is recorded with its worker; an unblamed loss is not an attempt (§2)."""
    kit.publish("A", "B")
    kit.claim(2, worker="w7")
    kit.lose_leases()
    (attempt,) = kit.info("A").attempts
    assert (attempt.attempt, attempt.epoch, attempt.worker) == (1, 1, "w7")
    assert kit.info("B").attempts == []


def hand_back_of_a_started_neighbour_spares_it(kit: Kit) -> None:
    """A task that dies with its worker burns no attempt of its neighbours, however often (§2)."""
    kit.publish("killer", "neighbour", max_attempts=5)
    for _ in range(4):
        assert kit.claim(2) == ["killer", "neighbour"]
        kit.start("killer")
        kit.lose_leases()
    assert _attempts(kit, "killer", "neighbour") == [4, 0]
