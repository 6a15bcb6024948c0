"""What the partition library of the source document promises, and this store keeps: rejects, locks, exclusiveness.

The words are the source's – consumer, reject, lock – beside ours: worker, retry, lease. One thing differs on purpose:
a rejected task keeps its place, instead of priority + 1 and a tie-breaker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from taskmq.message import Delivery
from taskmq.outcome import Ack, Outcome, Retry
from taskmq.queue import QueueConfig
from taskmq.testing.clock import FakeClock
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store
from tests.integration.redis_help import message
from tests.stores import STORES

SECOND = 1_000_000
LEASE = 30 * SECOND


class Line:
    """A store, its clock, and its tasks by name."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self._names: dict[str, str] = {}

    def publish(self, *names: str, partition: str | None, queue: str = "q", priority: int = 0) -> None:
        messages = [message(queue, partition, priority=priority) for _ in names]
        self._names.update(zip((m.id for m in messages), names, strict=True))
        self.store.publish(Publish(messages=messages))

    def get(self, count: int, consumer: str = "c1", *queues: str) -> list[Delivery]:
        """What a consumer gets, with this prefetch."""
        reserve = Reserve(queues=queues or ("q",), limit=count, worker=consumer, lease=LEASE)
        return list(self.store.reserve(reserve).deliveries)

    def names(self, deliveries: list[Delivery]) -> list[str]:
        return [self._names[delivery.id] for delivery in deliveries]

    def settle(self, outcome: Outcome, *deliveries: Delivery) -> list[bool]:
        return self.store.settle(Settle(items=[Settlement(delivery, outcome) for delivery in deliveries]))

    def rest(self, consumer: str = "c9") -> list[str]:
        """Everything that is ready now, in the order in which one consumer works it off."""
        names = []
        while got := self.get(1, consumer):
            names += self.names(got)
            assert self.settle(Ack(), *got) == [True]
        return names


@pytest.fixture(params=[name for name in STORES if name.startswith(("redis", "valkey"))])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Line]:
    clock = FakeClock()
    store = STORES[request.param](clock, tmp_path)
    yield Line(store, clock)
    store.flush()
    store.close()


# ── rejects ──


def test_a_rejected_head_takes_the_rest_of_its_batch_back_in_order(line: Line) -> None:
    """Of a batch of one ordered partition the first is rejected: all go back as they were, unblamed, at once."""
    line.publish("A", "B", "C", "D", partition="!x")
    batch = line.get(3)
    assert line.names(batch) == ["A", "B", "C"]
    assert line.settle(Retry(0), batch[0]) == [True]
    assert line.settle(Ack(), *batch[1:]) == [False, False]  # they are no longer this consumer's
    again = line.get(3, "c2")
    assert line.names(again) == ["A", "B", "C"]
    assert [delivery.attempt for delivery in again] == [2, 1, 1]
    assert line.settle(Ack(), *again) == [True, True, True]
    assert line.rest() == ["D"]


def test_a_reject_in_the_middle_keeps_what_is_done(line: Line) -> None:
    """What was acknowledged before the rejected one stays done; from it on all goes back in order."""
    line.publish("A", "B", "C", "D", partition="!x")
    a, b, c, d = line.get(4)
    assert line.settle(Ack(), a) == [True]
    assert line.settle(Retry(0), b) == [True]
    assert line.settle(Ack(), c, d) == [False, False]
    assert line.rest() == ["B", "C", "D"]


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_repeated_rejects_keep_order(line: Line, prefetch: int) -> None:
    """However often heads are rejected, tasks end in publish order; those published meanwhile come behind."""
    line.publish(*"ABCDE", partition="!x")
    done: list[str] = []
    for turn in range(40):
        batch = line.get(prefetch, f"c{turn % 3}")
        if not batch:
            break
        if turn % 3 != 2:
            assert line.settle(Retry(0), batch[0]) == [True]
        else:
            assert line.settle(Ack(), batch[0]) == [True]
            done += line.names(batch[:1])
            if len(batch) > 1:
                line.settle(Retry(0), batch[1])
        if turn == 5:
            line.publish("F", partition="!x")
    assert done == list("ABCDEF")[: len(done)]
    assert done + line.rest() == list("ABCDEF")


def test_rejects_never_collide_with_priorities(line: Line) -> None:
    """Neighbouring priorities need no gaps: a task rejected many times stays behind the more urgent ones."""
    line.publish("low", partition="!x", priority=1)
    for _ in range(20):
        assert line.settle(Retry(0), *line.get(1)) == [True]
    line.publish("high", partition="!x", priority=2)
    assert line.rest() == ["high", "low"]


def test_a_delayed_reject_blocks_only_its_partition(line: Line) -> None:
    """Until the delay is over nothing of the partition starts, not even what is more urgent; all others go on."""
    for name in "xyz":
        line.publish(f"{name}1", f"{name}2", partition=f"!{name}")
    line.publish("p1", "p2", partition="p")
    line.publish("plain", partition=None)
    (head,) = line.get(1)
    assert line.names([head]) == ["x1"]
    line.settle(Retry(10 * SECOND), head)
    line.publish("x urgent", partition="!x", priority=9)
    assert sorted(line.rest()) == ["p1", "p2", "plain", "y1", "y2", "z1", "z2"]
    line.clock.advance(9.999999)
    assert line.rest() == []
    line.clock.advance(0.000001)
    assert line.rest() == ["x urgent", "x1", "x2"]


def test_a_delayed_reject_of_a_parallel_partition_may_block_it_whole(line: Line) -> None:
    """A remote side's rate limit: the whole partition waits, what runs of it goes on, and others are not touched."""
    line.publish("p1", "p2", "p3", partition="p")
    line.publish("q1", "q2", partition="q")
    first, other, second = (line.get(1) for _ in range(3))
    assert [line.names(got) for got in (first, other, second)] == [["p1"], ["q1"], ["p2"]]
    line.settle(Retry(5 * SECOND, partition=True), *first)
    assert line.rest() == ["q2"]
    assert line.settle(Ack(), *other, *second) == [True, True]
    line.clock.advance(4.999999)
    assert line.rest() == []
    line.clock.advance(0.000001)
    assert line.rest() == ["p1", "p3"]


# ── locks ──


def test_an_ordered_partition_is_exclusive_and_a_parallel_one_shared(line: Line) -> None:
    """While a consumer holds a task of !x nobody gets another of it; of x every consumer may have one."""
    line.publish("o1", "o2", "o3", partition="!x")
    line.publish("p1", "p2", "p3", partition="x")
    got = {consumer: line.names(line.get(1, consumer)) for consumer in ("c1", "c2", "c3", "c4", "c5")}
    assert got == {"c1": ["o1"], "c2": ["p1"], "c3": ["p2"], "c4": ["p3"], "c5": []}
    (info,) = line.store.partitions("q", ["!x"])
    assert (info.running, info.waiting, info.worker) == (1, 2, "c1")


def test_a_dead_consumer_s_lock_is_freed_and_its_tasks_return_in_place(line: Line) -> None:
    """Not before its lease is over, then at once and in order: its ordered batch and its parallel tasks."""
    line.publish("A", "B", "C", partition="!x")
    line.publish("p1", "p2", partition="p")
    dead = line.get(4, "dead")
    assert line.names(dead) == ["A", "p1", "p2", "B"]
    line.publish("D", partition="!x")
    line.publish("p3", partition="p")
    line.clock.advance(29.999999)
    assert line.rest("heir") == ["p3"]
    line.clock.advance(0.000001)
    heirs = line.get(9, "heir")
    assert [name for name in line.names(heirs) if not name.startswith("p")] == ["A", "B", "C", "D"]
    assert [name for name in line.names(heirs) if name.startswith("p")] == ["p1", "p2"]
    assert line.settle(Ack(), *dead) == [False] * 4, "a stale consumer is fenced"
    assert line.settle(Ack(), *heirs) == [True] * len(heirs)


def test_a_dead_consumer_s_unstarted_tasks_pay_no_attempt(line: Line) -> None:
    """Only the first of what it held is taken for started; its neighbours come back unblamed."""
    line.publish("A", "B", "C", partition="!x")
    line.get(3, "dead")
    line.clock.advance(30)
    assert [delivery.attempt for delivery in line.get(3, "heir")] == [2, 1, 1]


def test_many_consumers_never_meet_in_an_ordered_partition(line: Line) -> None:
    """Eight threads over four ordered partitions: never two in one, every one in publish order."""
    codes = [f"!{number}" for number in range(4)]
    for code in codes:
        line.publish(*(f"{code} {n:02}" for n in range(15)), partition=code)
    ran: list[str] = []
    inside: dict[str, int] = dict.fromkeys(codes, 0)
    mutex = threading.Lock()

    def consume(number: int) -> None:
        while True:
            batch = line.get(2, f"c{number}")
            if not batch:
                with mutex:
                    if not any(inside.values()):
                        return
                continue
            for delivery in batch:
                with mutex:
                    inside[str(delivery.partition)] += 1
            held = {str(delivery.partition) for delivery in batch}
            with mutex:
                assert all(inside[code] == sum(d.partition == code for d in batch) for code in held)
                ran.extend(line.names(batch))
                for delivery in batch:  # before the ack, for after it another may already be in
                    inside[str(delivery.partition)] -= 1
            assert all(line.settle(Ack(), *batch))

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(consume, number) for number in range(8)]:
            future.result(60)
    ran += line.rest()
    for code in codes:
        assert [name for name in ran if name.startswith(code)] == [f"{code} {n:02}" for n in range(15)]


# ── between queues ──


def test_weights_share_one_band_and_priority_goes_before_them(line: Line) -> None:
    """Weights 3:1, a hundred tasks each: of forty taken thirty and ten; an urgent one of the light queue first."""
    line.store.configure_queues({"heavy": QueueConfig(weight=3), "light": QueueConfig(weight=1)})
    for queue in ("heavy", "light"):
        line.publish(*[queue] * 100, partition=None, queue=queue)
    line.publish("urgent", partition=None, queue="light", priority=5)
    assert line.names(line.get(1, "c", "heavy", "light")) == ["urgent"]
    taken = [name for _ in range(40) for name in line.names(line.get(1, "c", "heavy", "light"))]
    assert abs(taken.count("heavy") - 30) <= 2
    assert taken.count("heavy") + taken.count("light") == 40


def test_four_threads_get_no_task_twice(line: Line) -> None:
    """Two hundred tasks, four threads that claim and acknowledge: each task once."""
    names = [f"T{number}" for number in range(200)]
    line.publish(*names, partition=None)

    def consume(number: int) -> list[str]:
        taken = []
        while batch := line.get(3, f"c{number}"):
            taken += line.names(batch)
            assert all(line.settle(Ack(), *batch))
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [name for names in pool.map(consume, range(4)) for name in names]
    assert sorted(taken) == sorted(names)
