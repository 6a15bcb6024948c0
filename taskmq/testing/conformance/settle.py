"""Settle: how a delivery ends, once (§2)."""

from __future__ import annotations

from taskmq.outcome import Ack, Dead, Defer, Outcome, Retry, Yield
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import LEASE, SECOND, Kit, us
from taskmq.transport.base import Reserve, Reserved, Settle, Settlement

ALL: tuple[Outcome, ...] = (Ack(), Retry(0), Defer(0), Yield(), Dead("failed"))


def reserve_shows_a_claimed_task_as_running(kit: Kit) -> None:
    """A claimed task is RUNNING, in the hands of its worker, under a lease, and not started before it is said (§2)."""
    kit.publish("A")
    kit.claim(worker="w7", lease=12)
    info, delivery = kit.info("A"), kit.delivery("A")
    assert (info.state, info.worker, info.started_at, info.attempt) == (TaskState.RUNNING, "w7", None, 0)
    assert info.lease_until == delivery.lease_until == kit.now + 12 * SECOND
    assert (delivery.attempt, delivery.epoch, delivery.lease) == (1, info.epoch, 12 * SECOND)


def extend_tells_when_a_task_was_started(kit: Kit) -> None:
    """Once a heartbeat names it, a task has a start time and counts its attempt (§2)."""
    kit.publish("A")
    kit.claim()
    kit.advance(2)
    kit.start("A")
    started = kit.now
    kit.advance(1)
    kit.start("A")
    info = kit.info("A")
    assert (info.started_at, info.attempt) == (started, 1)


def settle_tells_when_a_task_was_started(kit: Kit) -> None:
    """A settle says how long ago the handler was started, which no heartbeat may have told (base.py, Settlement)."""
    kit.publish("A", "B")
    kit.claim(2)
    kit.advance(5)
    items = [Settlement(kit.delivery("A"), Ack(), started_ago=2 * SECOND), Settlement(kit.delivery("B"), Yield())]
    assert kit.store.settle(Settle(items=items)) == [True, True]
    assert (kit.info("A").started_at, kit.info("B").started_at) == (kit.now - 2 * SECOND, None)


def ack_remembers_who_did_it(kit: Kit) -> None:
    """An ended task shows its worker and when it was started (§2: a terminal state never changes)."""
    kit.publish("A")
    kit.claim(worker="w7")
    kit.start("A")
    started = kit.now
    kit.advance(3)
    kit.ack("A")
    info = kit.info("A")
    assert (info.worker, info.started_at, info.finished_at) == ("w7", started, kit.now)


def ack_ends_a_task_successfully(kit: Kit) -> None:
    """An acknowledged task is SUCCEEDED, out of the line and out of everybody's hands (§2)."""
    kit.publish("A")
    kit.claim()
    kit.advance(3)
    kit.ack("A")
    info = kit.info("A")
    assert (info.state, info.attempt, info.finished_at) == (TaskState.SUCCEEDED, 1, kit.now)
    assert info.lease_until is None
    assert kit.claim() == []


def settle_accepts_each_delivery_once(kit: Kit) -> None:
    """Once a delivery has ended, no outcome changes its task any more (§2, §10.2)."""
    for outcome in (Ack(), Dead("failed")):
        name = type(outcome).__name__
        kit.publish(name)
        kit.claim()
        assert kit.settle(name, outcome)
        before = kit.info(name)
        for late in ALL:
            kit.settle(name, late)
        assert kit.info(name) == before


def settle_may_be_repeated_without_harm(kit: Kit) -> None:
    """Repeating a settle whose answer was lost changes nothing (base.py)."""
    kit.publish("A")
    kit.claim()
    kit.retry("A", delay=10)
    before = kit.info("A")
    kit.settle("A", Retry(us(10)))
    assert kit.info("A") == before


def settle_answers_each_item(kit: Kit) -> None:
    """One lost lease does not stop the others (base.py)."""
    kit.publish("A", "B", "C")
    kit.claim(3)
    kit.ack("B")
    assert kit.settle_all([("A", Ack()), ("B", Ack()), ("C", Retry(0))]) == [True, False, True]
    assert kit.states("A", "B", "C") == [TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.QUEUED]


def settle_takes_the_first_of_two_outcomes_in_one_call(kit: Kit) -> None:
    """Of two outcomes for one delivery in one call the first counts (base.py: in this order)."""
    kit.publish("A")
    kit.claim()
    assert kit.settle_all([("A", Retry(0)), ("A", Ack())]) == [True, False]
    assert kit.state("A") is TaskState.QUEUED


def settle_of_nothing_is_harmless(kit: Kit) -> None:
    """An empty settle has an empty answer (base.py)."""
    assert kit.settle_all([]) == []


def settle_of_a_purged_task_is_refused(kit: Kit) -> None:
    """A delivery of a task that is gone is refused (§2)."""
    kit.publish("A", retention=0)
    kit.claim()
    kit.ack("A")
    assert kit.settle_all([("A", outcome) for outcome in ALL]) == [False] * 5


def settle_counts_started_attempts_only(kit: Kit) -> None:
    """No attempt is consumed by defer and yield, one by retry; the epoch grows at every claim (§2)."""
    kit.publish("A", max_attempts=9)
    seen = []
    for outcome in (Defer(0), Yield(), Retry(0), Defer(0), Retry(0), Yield()):
        kit.claim()
        seen.append(kit.delivery("A").attempt)
        epoch = kit.delivery("A").epoch
        assert kit.settle("A", outcome)
        assert kit.claim() == ["A"]
        assert kit.delivery("A").epoch > epoch
        kit.hand_back("A")
    assert seen == [1, 1, 1, 2, 2, 3]
    assert kit.info("A").attempt == 2


def defer_runs_again_after_the_delay(kit: Kit) -> None:
    """A deferred task runs again after its delay, not before (§2)."""
    kit.publish("A")
    kit.claim()
    kit.defer("A", delay=10)
    kit.advance(9)
    assert kit.claim() == []
    kit.advance(1)
    assert kit.claim() == ["A"]


def hand_back_makes_a_task_available_at_once(kit: Kit) -> None:
    """A handed-back task is QUEUED and claimable at once, not after its lease (§10.9)."""
    kit.publish("A")
    kit.claim()
    kit.hand_back("A")
    info = kit.info("A")
    assert (info.state, info.attempt, info.worker) == (TaskState.QUEUED, 0, None)
    assert kit.claim() == ["A"]


def die_moves_a_task_to_the_dead_letters(kit: Kit) -> None:
    """A dead task is FAILED and carries reason, error and traceback (§2)."""
    kit.publish("A")
    kit.claim(worker="w7")
    kit.settle("A", Dead("no_such_user", "LookupError: 7", "Traceback …"))
    info = kit.info("A")
    assert (info.state, info.reason, info.error) == (TaskState.FAILED, "no_such_user", "LookupError: 7")
    assert (info.traceback, info.attempt, info.finished_at) == ("Traceback …", 1, kit.now)
    assert kit.claim() == []


def settle_takes_whatever_an_exception_says(kit: Kit) -> None:
    """What is no text in some store is a question mark in all: a task must not run for ever for it (outcome.py)."""
    kit.publish("A", "B")
    kit.claim(2)
    kit.settle("A", Retry(0, error="a\0b", traceback="c\ud800d"))
    kit.settle("B", Dead("e\0f", error="\udfff", traceback="\0"))
    (attempt,) = kit.info("A").attempts
    assert (attempt.error, attempt.traceback) == ("a?b", "c?d")
    dead = kit.info("B")
    assert (dead.reason, dead.error, dead.traceback) == ("e?f", "?", "?")


def settle_and_reserve_does_both(kit: Kit) -> None:
    """One exchange settles and claims, in this order: what the settle frees can be claimed (base.py)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    settle = Settle(items=[Settlement(kit.delivery("A"), Ack())])
    results, got = kit.store.settle_and_reserve(settle, Reserve(queues=["q"], limit=5, worker="w", lease=us(LEASE)))
    assert results == [True]
    assert [kit.name(delivery.id) for delivery in got.deliveries] == ["B"]


def settle_and_reserve_works_with_nothing_to_settle(kit: Kit) -> None:
    """The exchange with an empty settle is a reserve (base.py)."""
    kit.publish("A")
    results, got = kit.store.settle_and_reserve(Settle(items=[]), Reserve(queues=["q"], limit=5, worker="w"))
    assert (results, [kit.name(delivery.id) for delivery in got.deliveries]) == ([], ["A"])


def settle_and_reserve_from_no_queue_settles(kit: Kit) -> None:
    """The exchange with a claim from no queues is a settle (base.py)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    for items, results in (([Settlement(kit.delivery("A"), Ack())], [True]), ([], [])):
        assert kit.store.settle_and_reserve(Settle(items=items), Reserve(queues=[], limit=5, worker="w")) == (
            results,
            Reserved(deliveries=[]),
        )
    assert kit.claim() == ["B"]


def settle_and_reserve_answers_stale_deliveries(kit: Kit) -> None:
    """A lost lease in the settle does not stop the claim (base.py)."""
    kit.publish("A", "B")
    kit.claim()
    stale = kit.delivery("A")
    kit.lose_leases()
    settle = Settle(items=[Settlement(stale, Ack())])
    results, got = kit.store.settle_and_reserve(settle, Reserve(queues=["q"], limit=5, worker="w"))
    assert (results, [kit.name(delivery.id) for delivery in got.deliveries]) == ([False], ["A", "B"])


def reserve_never_starts_an_ended_task(kit: Kit) -> None:
    """A task in a terminal state is never started again, whatever time passes (§10.4)."""
    kit.publish("ok", "dead", "cancelled")
    kit.publish("expired", expires=1, delay=5)
    kit.claim(2)
    kit.ack("ok")
    kit.die("dead")
    kit.cancel("cancelled")
    kit.advance(1)
    kit.maintain()
    for _ in range(3):
        kit.lose_leases()
        assert kit.claim(9) == []
    ends = [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED]
    assert kit.states("ok", "dead", "cancelled", "expired") == ends
