"""What operators see: get, find, stats and partitions (base.py, Inspect)."""

from __future__ import annotations

from taskmq.state import TaskState
from taskmq.testing.conformance.kit import SECOND, Kit, names, needs
from taskmq.transport.base import Find


def get_answers_in_order_and_for_the_unknown(kit: Kit) -> None:
    """``get`` answers each id in order, None for what is not there (base.py)."""
    kit.publish("A", "B")
    kit.message("unknown")
    infos = kit.store.get([kit.id(name) for name in ("B", "unknown", "A", "B")])
    assert [info and kit.name(info.id) for info in infos] == ["B", None, "A", "B"]
    assert kit.store.get([]) == []


def get_shows_the_life_of_a_task(kit: Kit) -> None:
    """Each state of a task's life is seen: SCHEDULED, QUEUED, RUNNING, RETRYING, SUCCEEDED (§2)."""
    seen = []
    kit.publish("A", delay=5)
    seen.append(kit.state("A"))
    kit.advance(5)
    seen.append(kit.state("A"))
    kit.claim()
    seen.append(kit.state("A"))
    kit.retry("A", delay=5)
    seen.append(kit.state("A"))
    kit.advance(5)
    seen.append(kit.state("A"))
    kit.claim()
    kit.ack("A")
    seen.append(kit.state("A"))
    assert seen == ["SCHEDULED", "QUEUED", "RUNNING", "RETRYING", "QUEUED", "SUCCEEDED"]


def find_lists_the_newest_first(kit: Kit) -> None:
    """A listing shows waiting, running and ended tasks of all queues, newest first (base.py)."""
    kit.publish("A", "B", "C")
    kit.publish("D", queue="other", delay=60)
    kit.claim(2)
    kit.ack("B")
    assert kit.find() == ["D", "C", "B", "A"]


def find_filters_by_every_condition(kit: Kit) -> None:
    """Queue, states, handler, partition and tag each narrow a listing, and all given ones must hold (base.py)."""
    kit.publish("A", queue="one", handler="h1", partition="!x", tags=("red", "blue"))
    kit.publish("B", queue="one", handler="h2", partition="x", tags=("blue",))
    kit.publish("C", queue="two", handler="h1", tags=("reddish",))
    kit.publish("D", queue="two", handler="h1", delay=60)
    assert kit.find(queue="one") == ["B", "A"]
    assert kit.find(handler="h1") == ["D", "C", "A"]
    assert kit.find(partition="x") == ["B"]
    assert kit.find(partition="!x") == ["A"]
    assert kit.find(tag="red") == ["A"]
    assert kit.find(tag="blue") == ["B", "A"]
    assert kit.find(states=[TaskState.SCHEDULED]) == ["D"]
    assert kit.find(queue="two", handler="h1", states=[TaskState.QUEUED]) == ["C"]
    assert kit.find(queue="nobody") == []


def find_filters_by_each_state(kit: Kit) -> None:
    """Each state finds its tasks, and several states find those of all (base.py)."""
    kit.publish("SUCCEEDED", "FAILED", "RETRYING", "RUNNING")
    kit.claim(4)
    kit.ack("SUCCEEDED")
    kit.die("FAILED")
    kit.retry("RETRYING", delay=60)
    kit.publish("EXPIRED", expires=1)
    kit.advance(1)
    kit.maintain()
    kit.publish("CANCELLED", "QUEUED")
    kit.cancel("CANCELLED")
    kit.publish("SCHEDULED", delay=60)
    for state in TaskState:
        assert kit.find(states=[state]) == [state.value]
    assert kit.find(states=[TaskState.FAILED, TaskState.RUNNING]) == ["RUNNING", "FAILED"]


def find_pages_through_everything(kit: Kit) -> None:
    """Pages follow one another by cursor, without gaps and repeats, whatever ends or comes meanwhile (base.py)."""
    kit.publish(*names("T", 25))
    seen: list[str] = []
    after: str | None = None
    for _ in range(9):
        page = kit.store.find(Find(queue="q", limit=10, after=after))
        seen += [kit.name(info.id) for info in page.tasks]
        after = page.cursor
        if after is None:
            break
        assert len(page.tasks) == 10
        kit.publish(f"new {len(seen)}")
        (name,) = kit.claim()
        kit.ack(name)
    assert seen == names("T", 25)[::-1]


def find_ends_a_full_last_page(kit: Kit) -> None:
    """A last page that is just full has no cursor to an empty one (base.py, Found)."""
    kit.publish(*names("T", 10))
    page = kit.store.find(Find(limit=10))
    assert (len(page.tasks), page.cursor) == (10, None)


def stats_count_by_state_and_priority(kit: Kit) -> None:
    """A queue's numbers are those of its tasks (base.py, QueueStats)."""
    kit.publish("a", "b", "c", "d", priority=5)
    kit.claim(4)
    kit.ack("a")
    kit.die("b")
    kit.retry("c", delay=60)
    kit.publish("e", "f", "g", priority=2)
    kit.publish("h", priority=9)
    kit.publish("i", "j", delay=60)
    stats = kit.stats()
    counts = (stats.scheduled, stats.ready, stats.running, stats.retrying, stats.dead)
    assert counts == (2, 4, 1, 1, 1)
    assert dict(stats.by_priority) == {9: 1, 2: 3}


def stats_show_time_and_not_promoters(kit: Kit) -> None:
    """What is due counts as ready, whether or not somebody has promoted it (§4)."""
    kit.publish("A", delay=10)
    kit.advance(10)
    assert (kit.stats().scheduled, kit.stats().ready) == (0, 1)


def stats_measure_the_oldest_ready_task(kit: Kit) -> None:
    """The age of the oldest ready task counts from when it could have run; None without one (base.py)."""
    kit.publish("A", delay=10)
    assert kit.stats().oldest_ready_age is None
    kit.advance(12)
    kit.publish("B", priority=9)
    assert kit.stats().oldest_ready_age == 2 * SECOND
    kit.claim(2)
    assert kit.stats().oldest_ready_age is None


def stats_list_queues_by_name(kit: Kit) -> None:
    """All queues that were used, or the named ones that exist, ordered by name (base.py)."""
    for queue in ("b", "a", "c"):
        kit.publish(f"in {queue}", queue=queue)
    assert [stats.name for stats in kit.store.stats()] == ["a", "b", "c"]
    assert [stats.name for stats in kit.store.stats(["c", "a", "nobody"])] == ["a", "c"]


def partitions_show_what_is_in_them(kit: Kit) -> None:
    """A partition shows its kind, weight, waiting and running tasks and its worker (base.py)."""
    kit.publish("A", "B", "C", partition="!x", weight=3)
    kit.claim(1, worker="w7")
    info = kit.partition("!x")
    assert info is not None
    assert (info.queue, info.code, info.ordered, info.weight) == ("q", "!x", True, 3)
    assert (info.waiting, info.running, info.worker) == (2, 1, "w7")
    assert (info.blocked_until, info.held_by) == (None, None)


def partitions_show_until_when_they_are_blocked(kit: Kit) -> None:
    """A partition blocked by a retry says until when (base.py)."""
    kit.publish("A", partition="!x")
    kit.claim()
    kit.retry("A", delay=10)
    info = kit.partition("!x")
    assert info is not None
    assert (info.blocked_until, info.waiting, info.running) == (kit.now + 10 * SECOND, 1, 0)


def partitions_are_listed_by_code(kit: Kit) -> None:
    """The partitions of one queue, ordered by code; those asked for and alive, if codes are given (base.py)."""
    for code in ("b", "!c", "a"):
        kit.publish(code, partition=code)
    kit.publish("elsewhere", queue="other", partition="z")
    assert [info.code for info in kit.store.partitions("q")] == ["!c", "a", "b"]
    assert [info.code for info in kit.store.partitions("q", ["b", "nobody", "a"])] == ["a", "b"]
    assert kit.store.partitions("nobody") == []


def flush_deletes_everything(kit: Kit) -> None:
    """Flushing leaves no queue, task, key, lock and worker, and the store is usable as a new one (base.py)."""
    kit.configure(paused=True)
    kit.publish("A", key="k", partition="!x")
    kit.store.lock("leader", "me", 60 * SECOND)
    kit.store.flush()
    assert (kit.find(), kit.store.stats(), kit.look("A")) == ([], [], None)
    assert kit.store.lock("leader", "you", 60 * SECOND)
    kit.publish("B", key="k", args=[2])
    assert kit.claim(9) == ["B"]


@needs("shared")
def get_shows_everybody_the_same(kit: Kit) -> None:
    """What one process did, another one sees at once (§5.4)."""
    other = kit.open()
    kit.publish("A", partition="!x")
    kit.claim(worker="w7")
    assert other.get([kit.id("A")]) == [kit.info("A")]
    assert other.stats() == kit.store.stats()
    assert other.partitions("q") == kit.store.partitions("q")
