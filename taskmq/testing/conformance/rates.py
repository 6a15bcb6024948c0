"""``rate``: how many tasks of a queue may start in a time (§8). A token is taken at the claim and not returned."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.queue import Rate
from taskmq.testing.conformance.kit import LEASE, SECOND, Kit, names, needs
from taskmq.transport.base import Wait


def _tasks(kit: Kit, count: int = 40, **options: object) -> None:
    kit.publish(*names("T", count), **options)  # type: ignore[arg-type]


def rate_lets_its_burst_start_at_once(kit: Kit) -> None:
    """``"100/s"`` has burst 100: so many start at once, and no more (§8)."""
    kit.configure(rate="100/s")
    _tasks(kit, 120)
    assert len(kit.claim(120)) == 100
    assert kit.claim(120) == []


def rate_refills_evenly(kit: Kit) -> None:
    """After the burst a task may start every ``per/count`` seconds, not before (§8)."""
    kit.configure(rate=Rate(count=5, per=1.0))
    _tasks(kit)
    kit.claim(5)
    for number in range(6, 10):
        kit.advance(0.199999)
        assert kit.claim() == []
        kit.advance(0.000001)
        assert kit.claim(9) == [f"T{number}"]


def rate_counts_by_the_minute_and_the_hour(kit: Kit) -> None:
    """``"6/m"`` is one in ten seconds after its burst, ``"2/h"`` one in half an hour (§8)."""
    for queue, rate, burst, pause in (("m", "6/m", 6, 10.0), ("h", "2/h", 2, 1800.0)):
        kit.configure(queue, rate=rate)
        kit.publish(*names(queue, 9), queue=queue)
        assert len(kit.claim(9, queue)) == burst
        kit.advance(pause - 0.001)
        assert kit.claim(9, queue) == []
        kit.advance(0.001)
        assert len(kit.claim(9, queue)) == 1


def rate_loses_and_makes_no_fraction_of_a_token(kit: Kit) -> None:
    """However oddly claims fall, exactly burst + count·time start in the long run (§8)."""
    kit.configure(rate=Rate(count=3, per=1.0))
    _tasks(kit, 40)
    started = 0
    for _ in range(100):
        started += len(kit.claim(9))
        kit.advance(0.09)
    assert started == 3 + 26  # the last claim is at 8.91 s: floor(26.73)


def rate_burst_may_be_smaller_than_its_count(kit: Kit) -> None:
    """A burst of 2 lets two start at once, however long nothing did (§8; queue.py, Rate)."""
    kit.configure(rate=Rate(count=10, per=1.0, burst=2))
    _tasks(kit)
    assert len(kit.claim(9)) == 2
    kit.advance(0.1)
    assert len(kit.claim(9)) == 1
    kit.advance(3600)
    assert len(kit.claim(9)) == 2


def rate_burst_may_be_larger_than_its_count(kit: Kit) -> None:
    """A burst of 8 at 2/s lets eight start at once, then two a second (§8; queue.py, Rate)."""
    kit.configure(rate=Rate(count=2, per=1.0, burst=8))
    _tasks(kit)
    assert len(kit.claim(20)) == 8
    kit.advance(1)
    assert len(kit.claim(20)) == 2


def rate_saves_no_more_than_its_burst(kit: Kit) -> None:
    """A bucket is full when it is full: an idle hour brings one burst (§8)."""
    kit.configure(rate="3/s")
    _tasks(kit)
    assert len(kit.claim(9)) == 3
    kit.advance(3600)
    assert len(kit.claim(9)) == 3
    assert kit.claim(9) == []


def rate_bounds_a_batch_and_its_singles_alike(kit: Kit) -> None:
    """A batch takes a token for each of its tasks (§8, §5)."""
    kit.configure(rate="5/m")
    _tasks(kit)
    assert kit.claim(3) == ["T1", "T2", "T3"]
    assert kit.claim(9) == ["T4", "T5"]
    assert kit.claim_one_by_one(3) == []


def rate_counts_followers(kit: Kit) -> None:
    """The tasks of a run take a token each, too (§8)."""
    kit.configure(rate="3/m")
    _tasks(kit, partition="!x")
    assert kit.claim(9) == ["T1", "T2", "T3"]
    kit.ack("T1", "T2", "T3")
    kit.advance(20)
    assert kit.claim(9) == ["T4"]


def rate_takes_back_no_token(kit: Kit) -> None:
    """However a delivery ends, its token is spent: the next start needs another (§8)."""
    ends: list[Callable[[], object]] = [
        *(lambda: kit.ack("T1"), lambda: kit.retry("T1"), lambda: kit.defer("T1", 0), lambda: kit.hand_back("T1")),
        *(lambda: kit.die("T1"), lambda: kit.cancel("T1"), lambda: kit.lose_leases()),
    ]
    for end in ends:
        kit.store.flush()
        kit.configure(rate="1/h")
        _tasks(kit, 3, max_attempts=9)
        assert kit.claim(9) == ["T1"]
        end()
        assert kit.claim(9) == []


def rate_costs_nothing_where_nothing_starts(kit: Kit) -> None:
    """Empty claims, other queues' tasks, expired and paused ones take no token (§8)."""
    kit.configure(rate="2/h")
    for _ in range(5):
        assert kit.claim(9) == []
    kit.publish("other", queue="other")
    kit.claim(9, "q", "other")
    kit.publish("late", expires=1)
    kit.advance(1)
    assert kit.claim(9) == []
    _tasks(kit)
    kit.store.pause_queue("q", True)
    assert kit.claim(9) == []
    kit.store.pause_queue("q", False)
    assert kit.claim(9) == ["T1", "T2"]


def rate_stops_no_other_queue(kit: Kit) -> None:
    """A queue without tokens leaves the places of a batch to others, and its urgent head makes no band (§8, §5.1)."""
    kit.configure("a", rate="1/h")
    kit.publish(*names("a", 3), queue="a", priority=9)
    kit.publish(*names("b", 3), queue="b")
    assert kit.claim(9, "a", "b") == ["a1", "b1", "b2", "b3"]


def rate_goes_with_max_running(kit: Kit) -> None:
    """Both gates hold: a task starts with a token and a place (§8)."""
    kit.configure(rate="5/h", max_running=2)
    _tasks(kit)
    assert kit.claim(9) == ["T1", "T2"]
    kit.ack("T1", "T2")
    assert kit.claim(9) == ["T3", "T4"]
    kit.ack("T3", "T4")
    assert kit.claim(9) == ["T5"]
    kit.ack("T5")
    assert kit.claim(9) == []


def rate_tells_when_the_next_start_is_allowed(kit: Kit) -> None:
    """An empty claim says when a token is there, and so does the queue; None means now (base.py)."""
    kit.configure(rate="4/m")
    _tasks(kit)
    assert kit.stats().next_start_at is None
    kit.claim(4, lease=3600)
    kit.advance(5)
    assert kit.reserve(9).next_due == kit.now + 10 * SECOND
    assert kit.stats().next_start_at == kit.now + 10 * SECOND
    kit.advance(10)
    assert kit.stats().next_start_at is None
    assert kit.claim(9) == ["T5"]


def rate_makes_waiting_tasks_no_work_until_a_token_is_there(kit: Kit) -> None:
    """``wait`` does not return for tasks that may not start yet, and does when they may (base.py, wait)."""
    kit.configure(rate="1/m")
    _tasks(kit)
    kit.claim(lease=3600)
    assert not kit.store.wait(Wait(queues=["q"], timeout=0.02))
    kit.advance(60)
    assert kit.store.wait(Wait(queues=["q"], timeout=0.02))


def rate_that_is_new_starts_full(kit: Kit) -> None:
    """Another rate begins with a full bucket; the same one, given again, keeps what it has (§8)."""
    kit.configure(rate="2/h")
    _tasks(kit)
    assert kit.claim(9) == ["T1", "T2"]
    kit.configure(rate="2/h", weight=3)
    assert kit.claim(9) == []
    kit.configure(rate="3/h")
    assert kit.claim(9) == ["T3", "T4", "T5"]
    kit.configure()
    assert len(kit.claim(9)) == 9
    kit.configure(rate="3/h")
    assert len(kit.claim(9)) == 3


def rate_is_shown(kit: Kit) -> None:
    """A queue shows its rate as it was given, in words or not (base.py, QueueStats)."""
    kit.configure(rate="20/m")
    assert kit.stats().config.rate == Rate(count=20, per=60.0)
    kit.configure(rate=Rate(count=7, per=0.5, burst=3))
    assert kit.stats().config.rate == Rate(count=7, per=0.5, burst=3)
    assert kit.store.configure_queues({"q": kit.stats().config}) == {}


def rate_is_gone_with_its_queue(kit: Kit) -> None:
    """A deleted queue's bucket does not outlive it (base.py, delete_queue)."""
    kit.configure(rate="1/h")
    _tasks(kit, 2)
    kit.claim()
    kit.ack("T1")
    kit.cancel("T2")
    assert kit.store.delete_queue("q")
    kit.configure(rate="1/h")
    kit.publish("A", "B")
    assert kit.claim(9) == ["A"]


def rate_counts_a_lost_start_again(kit: Kit) -> None:
    """A task that comes back from a dead worker takes a second token for its second start (§8)."""
    kit.configure(rate="2/h")
    kit.publish("A", "B", max_attempts=9)
    assert kit.claim() == ["A"]
    kit.advance(LEASE)
    assert kit.claim(9) == ["A"]
    assert kit.claim(9) == []


@needs("shared")
def rate_is_exact_across_stores(kit: Kit) -> None:
    """The bucket is in the store: two processes share its tokens (§8)."""
    other = kit.open()
    kit.configure(rate="3/h")
    _tasks(kit)
    assert kit.claim(2) == ["T1", "T2"]
    assert kit.claim(9, store=other) == ["T3"]
    kit.ack("T1", "T2", "T3")
    kit.advance(1200)
    assert kit.claim(9, store=other) == ["T4"]
    assert kit.claim(9) == []


@needs("durable")
def rate_survives_a_restart(kit: Kit) -> None:
    """A store that is opened again has no token that was spent (§8)."""
    kit.configure(rate="2/h")
    _tasks(kit)
    kit.claim(9)
    kit.ack("T1", "T2")
    kit.store.close()
    kit.store = kit.open()
    assert kit.claim(9) == []
    kit.advance(1800)
    assert kit.claim(9) == ["T3"]
