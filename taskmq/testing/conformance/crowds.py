"""Gates under fifty claimers at once, in eight processes where the store is shared: each is exact (§8, §10.6).

Two questions for each gate: when all ask once and nobody settles, exactly as many tasks are claimed as it lets through;
and when all claim and settle on and on, nobody ever sees more of them in hands at once, and none is lost.
"""

from __future__ import annotations

import multiprocessing
import time

from taskmq.errors import QueueFull
from taskmq.message import Message
from taskmq.queue import Limit, Rate
from taskmq.testing.conformance.crowd import (
    CLAIMERS,
    Hold,
    Work,
    claim_and_settle,
    crowd,
    each_once,
    most_at_once,
)
from taskmq.testing.conformance.kit import Kit, names
from taskmq.transport.base import Publish, Reserve, Store


def _claim_once(*queues: str) -> Work[list[str]]:
    def work(store: Store, number: int) -> list[str]:
        got = store.reserve(Reserve(queues=queues or ("q",), limit=1, worker=f"w{number}"))
        return [delivery.id for delivery in got.deliveries]

    return work


def _exactly(kit: Kit, count: int, *queues: str) -> list[str]:
    """Fifty claim one task each and keep it: exactly so many get one. Their names."""
    claimed = [task_id for mine in crowd(kit, _claim_once(*queues)) for task_id in mine]
    assert len(claimed) == len(set(claimed)) == count
    return [kit.name(task_id) for task_id in claimed]


def _all_done(kit: Kit, holds: list[list[Hold]], most: int, *queues: str, published: int) -> None:
    """Nobody ever saw more than ``most`` in hands at once, and what they left is still there and is done once."""
    flat = [hold for mine in holds for hold in mine]
    done = {kit.name(task_id) for task_id in each_once(flat)}
    assert 0 < most_at_once(flat) <= most
    left = kit.work_off(*queues, n=9)
    assert len(done) + len(left) == published
    assert not done & set(left)


def crowd_keeps_max_running(kit: Kit) -> None:
    """A queue's max_running of N lets exactly N of fifty claimers have a task, and never more at once (§8, §10.6)."""
    kit.configure("once", max_running=7)
    kit.publish(*names("once", 60), queue="once")
    _exactly(kit, 7, "once")
    kit.configure(max_running=5)
    kit.publish(*names("T", 150))
    _all_done(kit, crowd(kit, claim_and_settle("q")), 5, "q", published=150)
    assert (kit.stats().running, kit.stats("once").running) == (0, 7)


def crowd_keeps_limits(kit: Kit) -> None:
    """A key's limit of N, over two queues, lets exactly N of fifty have a task, and never more at once (§8, §10.6)."""
    for queue in ("a", "b"):
        kit.publish(*names(f"once {queue}", 30), queue=queue, limit=Limit("once", 7))
    _exactly(kit, 7, "a", "b")
    assert kit.limit("once")[0] == 7
    for queue in ("c", "d"):
        kit.publish(*names(queue, 60), queue=queue, limit=Limit("k", 4))
    holds = crowd(kit, claim_and_settle("c", "d"))
    _all_done(kit, holds, 4, "c", "d", published=120)
    assert kit.limit("k") == (0, 0)


def crowd_keeps_each_task_s_own_limit(kit: Kit) -> None:
    """Of one key, tasks of a smaller n start only while fewer than that run, however many ask (§8, §10.6)."""
    kit.publish(*names("one", 60), limit=Limit("k", 1))
    kit.publish(*names("three", 60), limit=Limit("k", 3))
    holds = crowd(kit, claim_and_settle("q"))
    ones = [hold for mine in holds for hold in mine if kit.name(hold.task_id).startswith("one")]
    assert most_at_once(ones) <= 1
    _all_done(kit, holds, 3, published=120)


def crowd_keeps_a_partition_s_max_running(kit: Kit) -> None:
    """A partition's max_running of N lets exactly N of fifty have a task, and never more at once (§6, §10.6)."""
    kit.publish(*names("once", 60), queue="once", partition="x", most=6)
    _exactly(kit, 6, "once")
    kit.publish(*names("T", 120), partition="x", most=3)
    _all_done(kit, crowd(kit, claim_and_settle("q")), 3, published=120)
    assert kit.partition("x") is None


def crowd_keeps_a_rate(kit: Kit) -> None:
    """A bucket of N tokens lets exactly N tasks start, however many ask, and settling brings none back (§8)."""
    kit.configure(rate=Rate(count=60, per=60.0, burst=9))
    kit.publish(*names("T", 90))
    holds = crowd(kit, claim_and_settle("q"))
    assert len(each_once([hold for mine in holds for hold in mine])) == 9
    kit.advance(4)
    _exactly(kit, 4)


def crowd_keeps_max_queued(kit: Kit) -> None:
    """Of fifty publishers exactly as many are accepted as there is room; duplicates are answered always (§8, §7)."""
    kit.configure(max_queued=12)
    kit.publish("first", key="k")
    messages = [kit.message(f"T{number}") for number in range(CLAIMERS)]
    again = [kit.message(f"again {number}", key="k") for number in range(CLAIMERS)]

    def work(store: Store, number: int) -> str | None:
        (receipt,) = store.publish(Publish(messages=[again[number]]))
        assert receipt.duplicate
        return f"T{number}" if _accepted(store, [messages[number]]) else None

    accepted = {name for name in crowd(kit, work) if name is not None}
    assert len(accepted) == 11
    assert set(kit.claim(99)) == {"first", *accepted}


def crowd_keeps_max_queued_beside_claimers(kit: Kit) -> None:
    """While some publish batches and others claim, never more than max_queued wait, and no batch is split (§8)."""
    kit.configure(max_queued=9)
    batches = [[kit.message(f"{number} {item}") for item in range(4)] for number in range(CLAIMERS)]
    claims = claim_and_settle("q", rounds=3)

    def work(store: Store, number: int) -> tuple[int, list[str]]:
        if number % 2:
            return 0, each_once(claims(store, number))
        accepted = sum(_accepted(store, batches[number + more]) for more in (0, 1))
        (stats,) = store.stats(["q"])
        assert stats.ready + stats.scheduled + stats.retrying <= 9
        return 4 * accepted, []

    told = crowd(kit, work)
    done = [kit.name(task_id) for _, ids in told for task_id in ids] + kit.work_off(n=9)
    assert len(done) == len(set(done)) == sum(count for count, _ in told)
    assert len(done) >= 8


def _accepted(store: Store, messages: list[Message]) -> bool:
    try:
        store.publish(Publish(messages=messages))
    except QueueFull:
        return False
    return True


def crowd_keeps_a_pause(kit: Kit) -> None:
    """Once a pause has been answered, no claim of anybody that begins after it brings a task (§8)."""
    kit.publish(*names("T", 400))
    paused = multiprocessing.get_context("fork").Event()
    claim = claim_and_settle("q", rounds=1, depth=0)

    def work(store: Store, number: int) -> tuple[int, list[tuple[int, list[Hold]]]]:
        """When the pause was answered (told by one of them), and for each claim when it began and what it brought."""
        claims: list[tuple[int, list[Hold]]] = []
        at = 0
        for _ in range(2 if number == 0 else 400):
            if paused.is_set():
                break
            claims.append((time.monotonic_ns(), claim(store, number)))
        if number == 0:
            store.pause_queue("q", True)
            at = time.monotonic_ns()
            paused.set()
        claims += [(time.monotonic_ns(), claim(store, number)) for _ in range(2)]
        return at, claims

    told = crowd(kit, work)
    answered = max(at for at, _ in told)
    claims = [one for _, some in told for one in some]
    late = [holds for began, holds in claims if began > answered]
    assert len(late) >= 2
    assert not any(late)
    each_once([hold for _, holds in claims for hold in holds])
    assert kit.claim(9) == []
    kit.store.pause_queue("q", False)
    assert len(kit.work_off(n=100)) == 400 - sum(len(holds) for _, holds in claims)


def crowd_keeps_ordered_partitions(kit: Kit) -> None:
    """Nobody ever sees two tasks of an ordered partition at once, and each starts in publish order (§6, §10.3)."""
    codes = [f"!p{number}" for number in range(5)]
    for code in codes:
        kit.publish(*names(f"{code} ", 30), partition=code)
    told = crowd(kit, claim_and_settle("q", limit=1))
    holds = sorted((hold for mine in told for hold in mine), key=lambda hold: hold.since)
    for code in codes:
        mine = [hold for hold in holds if kit.name(hold.task_id).startswith(f"{code} ")]
        assert most_at_once(mine) <= 1
        assert [kit.name(hold.task_id) for hold in mine] == names(f"{code} ", 30)[: len(mine)]
    each_once(holds)


def crowd_keeps_turns_between_queues(kit: Kit) -> None:
    """However many claim, two backlogged queues of one band differ by at most one turn (§5, §10.5)."""
    kit.configure("a", weight=3)
    kit.configure("b", weight=2)
    for queue in ("a", "b"):
        kit.publish(*names(queue, 200), queue=queue)
    crowd(kit, claim_and_settle("a", "b", rounds=2))
    served = [kit.stats("a").served / 3, kit.stats("b").served / 2]
    assert abs(served[0] - served[1]) <= 1
    assert min(served) > 0
