"""Dead letters: listed, replayed with a new budget, purged (§2)."""

from __future__ import annotations

from typing import Any

from taskmq.outcome import Dead
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit

FAILED, QUEUED = TaskState.FAILED, TaskState.QUEUED


def _dead(kit: Kit, *names: str, **options: Any) -> None:
    """Publish these and have them die."""
    for name in names:
        kit.publish(name, **options)
        assert kit.claim() == [name]
        kit.die(name)


def find_lists_the_dead_letters(kit: Kit) -> None:
    """Dead letters are the FAILED tasks of a queue, newest first, and the queue counts them (base.py)."""
    _dead(kit, "A", "B")
    kit.publish("alive")
    assert kit.find(queue="q", states=[FAILED]) == ["B", "A"]
    assert kit.stats().dead == 2


def replay_queues_a_dead_letter_again(kit: Kit) -> None:
    """A replay makes a dead letter QUEUED under its own id and records that it was replayed (§2)."""
    _dead(kit, "A", args=[1], priority=3)
    assert kit.replay("A") == [True]
    info = kit.info("A")
    assert (info.state, info.attempt, info.replays, info.finished_at) == (QUEUED, 0, 1, None)
    assert (info.args, info.priority) == ([1], 3)
    assert kit.stats().dead == 0
    assert kit.claim() == ["A"]
    kit.ack("A")
    assert kit.state("A") is TaskState.SUCCEEDED


def replay_gives_a_new_budget(kit: Kit) -> None:
    """A replayed task has all its attempts again (§2)."""
    kit.publish("A", max_attempts=2)
    for _ in range(2):
        for _ in range(2):
            assert kit.claim() == ["A"]
            kit.lose_leases()
        assert kit.state("A") is FAILED
        kit.replay("A")
    kit.claim()
    assert kit.delivery("A").attempt == 1
    assert kit.info("A").replays == 2


def replay_gives_a_poisoned_task_a_new_budget(kit: Kit) -> None:
    """The expiries counted for poison start anew, too (§2)."""
    kit.publish("A", max_attempts=50)
    for _ in range(10):
        kit.claim()
        kit.lose_leases()
    assert kit.info("A").reason == "poison"
    kit.replay("A")
    for _ in range(9):
        assert kit.claim() == ["A"]
        kit.lose_leases()
    assert kit.state("A") is QUEUED


def replay_keeps_the_epoch_growing(kit: Kit) -> None:
    """The epoch always grows, so deliveries from before a replay stay fenced (§1, §2)."""
    _dead(kit, "A")
    old = kit.delivery("A")
    kit.replay("A")
    kit.claim()
    assert kit.delivery("A").epoch > old.epoch
    assert kit.renew(old).lease_until is None


def replay_moves_to_another_queue(kit: Kit) -> None:
    """A dead letter may be replayed into another queue, by that queue's rules (library.md, dead letters)."""
    _dead(kit, "A")
    kit.configure("other", order="aging")
    assert kit.replay("A", queue="other") == [True]
    assert (kit.info("A").queue, kit.claim(9)) == ("other", [])
    assert kit.claim(9, "other") == ["A"]
    assert (kit.delivery("A").queue, kit.delivery("A").aging) == ("other", True)
    kit.ack("A")
    assert kit.find(queue="other") == ["A"]


def replay_keeps_the_partition(kit: Kit) -> None:
    """A replayed task is in its partition again, here or in another queue (§2)."""
    kit.publish("A", "B", partition="!x")
    for _ in range(2):
        (name,) = kit.claim()
        kit.die(name)
    assert kit.replay("A") == [True]
    assert kit.replay("B", queue="other") == [True]
    assert kit.partition("!x") is not None
    assert kit.partition("!x", "other") is not None
    assert sorted(kit.claim(2, "q", "other")) == ["A", "B"]


def replay_refuses_what_is_not_dead(kit: Kit) -> None:
    """Waiting, running, succeeded, cancelled and unknown tasks are not replayed (base.py)."""
    kit.publish("done", "running")
    kit.claim(2)
    kit.ack("done")
    kit.publish("cancelled")
    kit.cancel("cancelled")
    kit.publish("queued")
    kit.message("unknown")
    known = ("done", "running", "cancelled", "queued")
    before = kit.states(*known)
    assert kit.replay("unknown", *known) == [False] * 5
    assert kit.states(*known) == before
    assert kit.replay(*known, queue="new") == [False] * 4
    assert [stats.name for stats in kit.store.stats()] == ["q"]


def replay_answers_each_id(kit: Kit) -> None:
    """One that cannot be replayed does not stop the others (base.py)."""
    _dead(kit, "A", "B")
    kit.publish("alive")
    assert kit.replay("A", "alive", "B") == [True, False, True]
    assert kit.states("A", "B") == [QUEUED, QUEUED]


def replay_twice_queues_once(kit: Kit) -> None:
    """A second replay finds nothing dead: there is one task, and it runs once (§2)."""
    _dead(kit, "A")
    assert (kit.replay("A"), kit.replay("A")) == ([True], [False])
    assert kit.claim(9) == ["A"]


def replay_keeps_a_key_for_its_task(kit: Kit) -> None:
    """A replayed task still has its key (§7)."""
    _dead(kit, "A", key="k")
    kit.replay("A")
    (receipt,) = kit.publish("B", key="k")
    assert (receipt.id, receipt.duplicate) == (kit.id("A"), True)


def replay_survives_the_old_retention(kit: Kit) -> None:
    """A replayed task is no longer deleted at the end of the retention that began with its death (§10.1)."""
    _dead(kit, "A", retention=60)
    kit.replay("A")
    kit.advance(3600)
    kit.maintain()
    assert kit.claim() == ["A"]


def purge_deletes_ended_tasks_only(kit: Kit) -> None:
    """Purging deletes records of ended tasks and counts them; what waits or runs stays (base.py)."""
    _dead(kit, "dead")
    kit.publish("running", "done")
    kit.claim(2)
    kit.ack("done")
    kit.publish("queued")
    kit.message("unknown")
    ids = [kit.id(name) for name in ("dead", "running", "done", "queued", "unknown")]
    assert kit.store.purge(ids) == 2
    states = kit.states("dead", "running", "done", "queued")
    assert states == [None, TaskState.RUNNING, None, QUEUED]


def replay_takes_its_key_again(kit: Kit) -> None:
    """One key, one task: while the revived task is unfinished its key is taken, whatever its life was (§7, §10)."""
    for until in ("retention", "finished"):
        kit.publish(f"A-{until}", key=until, key_until=until)
        assert f"A-{until}" in kit.claim(9)
        kit.settle(f"A-{until}", Dead("failed"))
        assert kit.store.replay([kit.id(f"A-{until}")]) == [True]
        first = kit.id(f"A-{until}")
        (receipt,) = kit.publish(f"again-{until}", key=until, key_until=until)
        assert (receipt.id, receipt.duplicate) == (first, True)


def replay_leaves_a_key_to_who_took_it(kit: Kit) -> None:
    """A key that another task has taken meanwhile stays that task's (§7)."""
    kit.publish("A", key="k", key_until="finished")
    assert kit.claim() == ["A"]
    kit.settle("A", Dead("failed"))
    (other,) = kit.publish("B", key="k", key_until="finished")
    assert not other.duplicate
    assert kit.store.replay([kit.id("A")]) == [True]
    assert sorted(kit.work_off()) == ["A", "B"]
