"""What a queue counts: its numbers follow every move of its tasks (base.py, QueueStats)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.queue import Limit
from taskmq.testing.conformance.kit import SECOND, Kit, names, needs


def _counts(kit: Kit, queue: str = "q") -> tuple[int, int, int, int, int]:
    """Scheduled, ready, running, retrying and dead ones."""
    stats = kit.stats(queue)
    return (stats.scheduled, stats.ready, stats.running, stats.retrying, stats.dead)


def stats_count_unfinished_tasks_by_handler(kit: Kit) -> None:
    """``by_handler`` counts what waits, is due later, runs and retries, and no ended task (base.py, QueueStats)."""
    kit.publish(*names("a", 4), handler="a")
    kit.publish("b1", handler="b", partition="!x")
    kit.publish("b2", handler="b", version="2", delay=60)
    kit.publish("c", handler="c", limit=Limit("k", 1))
    assert kit.claim(3, handlers=[("a", "")]) == ["a1", "a2", "a3"]
    kit.ack("a1")
    kit.retry("a2", delay=60)
    assert dict(kit.stats().by_handler) == {"a": 3, "b": 2, "c": 1}
    kit.work_off()
    kit.ack("a3")
    assert dict(kit.stats().by_handler) == {"a": 1, "b": 1}


def stats_follow_each_way_of_a_task(kit: Kit) -> None:
    """Whatever happens to a task, it is counted once, where it is (base.py, QueueStats)."""
    steps: list[tuple[Callable[[], object], tuple[int, int, int, int, int]]] = [
        (lambda: kit.publish("A", delay=5, max_attempts=9), (1, 0, 0, 0, 0)),
        (lambda: kit.advance(5), (0, 1, 0, 0, 0)),
        (kit.claim, (0, 0, 1, 0, 0)),
        (lambda: kit.retry("A", delay=5), (0, 0, 0, 1, 0)),
        (lambda: kit.advance(5), (0, 1, 0, 0, 0)),
        (kit.claim, (0, 0, 1, 0, 0)),
        (lambda: kit.hand_back("A"), (0, 1, 0, 0, 0)),
        (kit.claim, (0, 0, 1, 0, 0)),
        (kit.lose_leases, (0, 1, 0, 0, 0)),
        (kit.claim, (0, 0, 1, 0, 0)),
        (lambda: kit.defer("A", 5), (0, 0, 0, 1, 0)),
        (lambda: kit.advance(5), (0, 1, 0, 0, 0)),
        (kit.claim, (0, 0, 1, 0, 0)),
        (lambda: kit.die("A"), (0, 0, 0, 0, 1)),
        (lambda: kit.replay("A"), (0, 1, 0, 0, 0)),
        (kit.claim, (0, 0, 1, 0, 0)),
        (lambda: kit.ack("A"), (0, 0, 0, 0, 0)),
    ]
    for number, (step, wanted) in enumerate(steps):
        step()
        assert _counts(kit) == wanted, f"after step {number}"
        kit.maintain()
        assert _counts(kit) == wanted, f"after step {number} and maintenance"


def stats_follow_each_way_in_partitions(kit: Kit) -> None:
    """The same in an ordered and in a parallel partition, with runs, blocks and holds (base.py, QueueStats)."""
    kit.configure(on_dead="hold")
    kit.publish(*names("x", 3), partition="!x", max_attempts=9)
    kit.publish(*names("y", 3), partition="y", max_attempts=9)
    assert _counts(kit) == (0, 6, 0, 0, 0)
    kit.claim(6)
    assert _counts(kit) == (0, 0, 6, 0, 0)
    kit.retry("x1", delay=5)
    kit.retry("y1", delay=5, partition=True)
    assert _counts(kit) == (0, 2, 2, 2, 0)
    kit.advance(5)
    assert _counts(kit) == (0, 4, 2, 0, 0)
    assert sorted(kit.claim(2)) == ["x1", "y1"]
    kit.die("x1")
    assert _counts(kit) == (0, 2, 3, 0, 1)
    kit.store.release_partition("q", "!x")
    assert _counts(kit) == (0, 3, 3, 0, 0)
    kit.store.skip_head("q", "!x")
    assert _counts(kit) == (0, 2, 3, 0, 1)


def stats_forget_the_dead_that_are_gone(kit: Kit) -> None:
    """A dead letter that is replayed, purged or past its retention is no longer counted (base.py, QueueStats)."""
    kit.publish("A", "B", "C", "D", retention=100)
    kit.claim(4)
    for name in "ABCD":
        kit.die(name)
    assert kit.stats().dead == 4
    kit.replay("A")
    assert kit.stats().dead == 3
    kit.store.purge([kit.id("B"), kit.id("B")])
    assert kit.stats().dead == 2
    kit.advance(100)
    kit.maintain()
    assert (kit.stats().dead, kit.stats().ready) == (0, 1)


def stats_count_a_replay_into_another_queue_there(kit: Kit) -> None:
    """A dead letter replayed elsewhere leaves one queue's numbers and enters the other's (base.py, QueueStats)."""
    kit.publish("A", handler="h", priority=4)
    kit.claim()
    kit.die("A")
    kit.replay("A", queue="other")
    assert (_counts(kit), dict(kit.stats().by_handler)) == ((0, 0, 0, 0, 0), {})
    stats = kit.stats("other")
    assert (stats.ready, dict(stats.by_priority), dict(stats.by_handler)) == (1, {4: 1}, {"h": 1})


def stats_count_what_was_cancelled_or_expired_nowhere(kit: Kit) -> None:
    """Cancelled and expired tasks leave the numbers, wherever they waited (base.py, QueueStats)."""
    kit.publish("later", "later too", delay=60, expires=90)
    kit.publish("ready", "late", expires=5)
    kit.publish("first", partition="!x", max_attempts=9)
    kit.publish("limited", "parked", "parked late", limit=Limit("k", 1), expires=30)
    kit.claim(9)
    for name in ("ready", "late", "limited"):
        kit.ack(name)
    kit.retry("first", delay=60)
    kit.cancel("later", "first", "parked")
    kit.advance(30)
    kit.maintain()
    assert _counts(kit) == (1, 0, 0, 0, 0)
    kit.advance(60)
    kit.maintain()
    assert (_counts(kit), dict(kit.stats().by_priority), kit.stats().partitions) == ((0, 0, 0, 0, 0), {}, 0)


def stats_measure_how_long_what_is_next_has_waited(kit: Kit) -> None:
    """The oldest of what is next: each priority's and handler's first, and the next partition's head (base.py)."""
    kit.publish("old", priority=1)
    kit.advance(10)
    kit.publish("urgent", priority=9)
    kit.advance(1)
    assert kit.stats().oldest_ready_age == 11 * SECOND
    kit.store.flush()
    kit.publish("g", handler="g")
    kit.advance(10)
    kit.publish("h", handler="h")
    assert kit.stats().oldest_ready_age == 10 * SECOND
    kit.claim(1, handlers=[("g", "")])
    kit.advance(2)
    assert kit.stats().oldest_ready_age == 2 * SECOND
    kit.publish("p", partition="!x", priority=3)
    kit.advance(1)
    kit.claim(1, handlers=[("h", "")])
    assert kit.stats().oldest_ready_age == 1 * SECOND


def stats_measure_no_age_of_what_cannot_start(kit: Kit) -> None:
    """What is not due, runs, or stands in a blocked, paused or busy partition has no age (base.py, QueueStats)."""
    kit.publish("blocked", partition="!b", max_attempts=9)
    kit.publish("busy", "behind", partition="!c")
    kit.claim(2, lease=3600)
    kit.retry("blocked", delay=3600)
    kit.store.pause_partition("q", "p", True)
    kit.publish("paused", partition="p")
    kit.publish("later", delay=3600)
    kit.advance(10)
    assert kit.stats().oldest_ready_age is None


def stats_measure_a_retry_from_its_own_time(kit: Kit) -> None:
    """A retried task is as old as it has been ready again (base.py, QueueStats)."""
    for options in ({}, {"partition": "!x"}):
        kit.publish("A", max_attempts=9, **options)  # type: ignore[arg-type]
        kit.advance(100)
        kit.claim()
        kit.retry("A", delay=10)
        kit.advance(13)
        kit.maintain()
        assert kit.stats().oldest_ready_age == 3 * SECOND
        kit.work_off()


def stats_show_the_next_start_of_a_rate_only(kit: Kit) -> None:
    """Without a rate every queue may start now (base.py, QueueStats)."""
    kit.publish("A", delay=60)
    assert kit.stats().next_start_at is None


def stats_count_partitions(kit: Kit) -> None:
    """``partitions`` counts the live ones: with something in line, running, parked, blocked or paused (base.py)."""
    kit.publish("waits", partition="a")
    kit.publish("later", partition="never", delay=60)
    kit.publish("runs", partition="!b", priority=9, limit=Limit("k", 1))
    kit.claim()
    kit.publish("parked", partition="c", limit=Limit("k", 1))
    kit.store.pause_partition("q", "d", True)
    assert kit.stats().partitions == 4
    assert [info.code for info in kit.store.partitions("q")] == ["!b", "a", "c", "d"]


def partitions_that_are_stopped_can_be_listed_alone(kit: Kit) -> None:
    """``stopped``: the paused, the held and the blocked ones; not the busy, full and parked (base.py, partitions)."""
    kit.configure(on_dead="hold")
    kit.publish("dead", partition="!held")
    kit.publish("retried", "behind", partition="!blocked", max_attempts=9)
    kit.publish("whole", partition="whole", max_attempts=9)
    kit.publish("busy", "next", partition="!busy")
    kit.publish("one", "two", partition="full", most=1)
    kit.publish("slot", "parked", partition="limited", limit=Limit("k", 1))
    kit.claim(6)
    kit.die("dead")
    kit.retry("retried", delay=60)
    kit.retry("whole", delay=60, partition=True)
    kit.claim(9)
    kit.store.pause_partition("q", "paused", True)
    stopped = [info.code for info in kit.store.partitions("q", stopped=True)]
    assert stopped == ["!blocked", "!held", "paused", "whole"]
    assert [info.code for info in kit.store.partitions("q", ["!held", "!busy"], stopped=True)] == ["!held"]
    kit.advance(60)
    kit.maintain()
    assert [info.code for info in kit.store.partitions("q", stopped=True)] == ["!held", "paused"]


def flush_forgets_limits_and_counts(kit: Kit) -> None:
    """After a flush no limit is taken, nothing is counted and no bucket is empty (base.py, flush)."""
    kit.configure(rate="1/h", max_queued=3)
    kit.publish("A", "B", limit=Limit("k", 1))
    kit.claim(9)
    kit.claim(9)
    kit.store.flush()
    assert (kit.store.limits(), kit.store.stats()) == ([], [])
    kit.publish("C", limit=Limit("k", 1))
    assert _counts(kit) == (0, 1, 0, 0, 0)
    assert kit.claim(9) == ["C"]


def flush_leaves_other_places_alone(kit: Kit) -> None:
    """A flush is for its own namespace: another's limits, counts, partitions and workers stay (base.py, flush)."""
    other = kit.elsewhere()
    kit.publish("A", "B", limit=Limit("k", 1), partition="x")
    kit.publish("C", "D", limit=Limit("k", 1), partition="x", store=other)
    assert (kit.claim(9), kit.claim(9, store=other)) == (["A"], ["C"])
    kit.claim(9)
    before = (kit.store.stats(), kit.store.limits(), kit.store.partitions("q"))
    other.flush()
    assert (kit.store.stats(), kit.store.limits(), kit.store.partitions("q")) == before
    assert (other.stats(), other.limits(), other.partitions("q")) == ([], [], [])
    kit.ack("A")
    assert kit.claim(9) == ["B"]


def delete_queue_forgets_its_numbers(kit: Kit) -> None:
    """A deleted queue's service, counts and dead letters are gone; another queue's are not (base.py, delete_queue)."""
    kit.publish("A", "B")
    kit.publish("C", "D", queue="other")
    kit.claim(4, "q", "other")
    kit.ack("A", "C")
    kit.die("B")
    kit.die("D")
    assert kit.store.delete_queue("q")
    assert [stats.name for stats in kit.store.stats()] == ["other"]
    assert (kit.look("B"), kit.replay("B")) == (None, [False])
    kit.publish("E")
    assert (_counts(kit), kit.stats().served) == ((0, 1, 0, 0, 0), 0)
    assert (_counts(kit, "other"), kit.stats("other").served) == ((0, 0, 0, 0, 1), 2)


def delete_queue_refuses_while_a_task_is_parked(kit: Kit) -> None:
    """A parked or delayed task is unfinished like any other (base.py, delete_queue)."""
    kit.publish("running", queue="other", limit=Limit("k", 1))
    kit.claim(1, "other")
    kit.publish("A", limit=Limit("k", 1))
    assert not kit.store.delete_queue("q")
    kit.cancel("A")
    kit.publish("B", delay=60)
    assert not kit.store.delete_queue("q")
    kit.cancel("B")
    assert kit.store.delete_queue("q")


@needs("shared")
def stats_show_everybody_the_same(kit: Kit) -> None:
    """Counts are in the store: two processes add to the same ones (§5.4)."""
    other = kit.open()
    kit.publish("A", "B", handler="a")
    kit.publish("C", handler="a", store=other)
    kit.claim(store=other)
    assert other.stats() == kit.store.stats()
    assert (kit.stats().running, dict(kit.stats().by_handler)) == (1, {"a": 3})
