"""Open, wait, wake, close, open again (base.py)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from taskmq.errors import TransportError
from taskmq.outcome import Ack
from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit, needs
from taskmq.transport.base import Extend, Find, Maintain, Renewal, Settle, Settlement, Wait, WorkerInfo

PATIENCE = 20.0
"""Upper bound in seconds for what should happen at once."""
SOON = PATIENCE / 2


def _while_waiting(kit: Kit, change: Callable[[], object], again: bool = True) -> tuple[bool, float]:
    """Have a thread wait, and make the change until it returns; its answer and how long that took.

    The change is repeated because nobody can see from outside that a thread has begun to wait.
    """
    entered = threading.Event()

    def wait() -> bool:
        entered.set()
        return kit.store.wait(Wait(queues=["q"], timeout=PATIENCE))

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait)
        entered.wait(PATIENCE)
        begun = time.monotonic()
        change()
        while again and not answer.done() and time.monotonic() - begun < PATIENCE:
            change()
            threading.Event().wait(0.01)
        return answer.result(2 * PATIENCE), time.monotonic() - begun


def wait_returns_at_once_while_there_is_work(kit: Kit) -> None:
    """With something to claim there is nothing to wait for (base.py)."""
    kit.publish("A")
    begun = time.monotonic()
    assert kit.store.wait(Wait(queues=["other", "q"], timeout=PATIENCE))
    assert time.monotonic() - begun < SOON


def wait_returns_at_once_for_what_fell_due(kit: Kit) -> None:
    """A task whose time has come is work, whether or not somebody has promoted it (base.py; §4)."""
    kit.publish("A", delay=10)
    kit.advance(10)
    assert kit.store.wait(Wait(queues=["q"], timeout=0.1))


def wait_returns_at_once_for_ended_leases(kit: Kit) -> None:
    """A task whose lease has ended is work, whether or not somebody has reaped it (base.py; §2)."""
    kit.publish("A")
    kit.claim()
    kit.advance(60)
    assert kit.store.wait(Wait(queues=["q"], timeout=0.1))


def wait_gives_up_after_its_timeout(kit: Kit) -> None:
    """Without work a wait ends with its timeout and says so (base.py)."""
    kit.publish("elsewhere", queue="other")
    assert not kit.store.wait(Wait(queues=["q"], timeout=0.02))


def wait_ignores_what_cannot_be_claimed(kit: Kit) -> None:
    """Paused and full queues, busy and blocked partitions and tasks that are not due are no work (base.py)."""
    kit.configure("paused", paused=True)
    kit.configure("full", max_running=1)
    kit.publish("A", queue="paused")
    kit.publish("B", "C", queue="full")
    kit.claim(1, "full")
    kit.publish("D", "E", queue="busy", partition="!x")
    kit.claim(1, "busy")
    kit.publish("F", queue="blocked", partition="!x")
    kit.claim(1, "blocked")
    kit.retry("F", delay=60)
    kit.publish("G", queue="later", delay=60)
    assert not kit.store.wait(Wait(queues=["paused", "full", "busy", "blocked", "later"], timeout=0.02))


def wait_is_ended_by_a_publish(kit: Kit) -> None:
    """A publish into one of its queues ends a wait (base.py)."""
    numbers = iter(range(10**6))
    answer, took = _while_waiting(kit, lambda: kit.publish(f"T{next(numbers)}"))
    assert answer
    assert took < SOON


def wait_is_ended_by_what_becomes_claimable(kit: Kit) -> None:
    """A settle that frees an ordered partition ends a wait, too (base.py)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    answer, took = _while_waiting(kit, lambda: kit.ack("A"), again=False)
    assert answer
    assert took < SOON


def wait_is_ended_by_what_falls_due_meanwhile(kit: Kit) -> None:
    """A delayed task that is published while somebody waits ends the wait when it falls due (defaults.md)."""

    def publish_and_pass_time() -> None:
        kit.publish("later", delay=0.05)
        kit.advance(0.06)

    answer, took = _while_waiting(kit, publish_and_pass_time, again=False)
    assert answer
    assert took < SOON


def wake_ends_a_wait(kit: Kit) -> None:
    """``wake`` makes a blocked wait return at once, without work (base.py)."""
    answer, took = _while_waiting(kit, kit.store.wake)
    assert not answer
    assert took < SOON


def wake_leaves_no_trace(kit: Kit) -> None:
    """A wake that nobody waited for ends no later wait that has work to find (base.py)."""
    kit.store.wake()
    kit.publish("A")
    assert kit.store.wait(Wait(queues=["q"], timeout=PATIENCE))


def close_ends_every_verb(kit: Kit) -> None:
    """A closed store answers with TransportError, and may be closed again (base.py)."""
    kit.publish("A")
    kit.claim()
    kit.store.close()
    kit.store.close()
    verbs: list[Callable[[], object]] = [
        *(lambda: kit.publish("B"), kit.reserve, lambda: kit.hand_back("A"), lambda: kit.renew("A"), kit.maintain),
        *(lambda: kit.state("A"), kit.find, kit.stats, lambda: kit.cancel("A"), lambda: kit.partition("!x")),
        *(lambda: kit.store.lock("l", "me", 1), lambda: kit.store.unlock("l", "me"), lambda: kit.store.forget("w")),
        *(kit.store.workers, lambda: kit.store.pause_queue("q", True), lambda: kit.replay("A"), kit.store.flush),
        *(lambda: kit.store.purge([kit.id("A")]), lambda: kit.store.wait(Wait(queues=["q"], timeout=0.01))),
    ]
    for number, verb in enumerate(verbs):
        try:
            verb()
        except TransportError:
            continue
        raise AssertionError(f"verb {number} of the list answered although the store is closed")


def close_ends_a_wait(kit: Kit) -> None:
    """Closing a store makes a blocked wait return (base.py)."""

    def ask() -> bool:
        try:
            return kit.store.wait(Wait(queues=["q"], timeout=PATIENCE))
        except TransportError:
            return False

    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        answer = pool.submit(ask)
        kit.store.close()
        assert not answer.result(2 * PATIENCE)
    assert time.monotonic() - begun < SOON


@needs("durable")
def close_loses_nothing(kit: Kit) -> None:
    """What was published, claimed, delayed and settled is there when the store is opened again (§10.1)."""
    kit.configure(weight=3, on_dead="hold")
    kit.publish("done", "running", "queued", "blocked", partition="p", key_until="retention")
    kit.publish("later", delay=60, key="k")
    kit.claim(2)
    kit.ack("done", result=[1])
    before = kit.store.get([kit.id(name) for name in ("done", "running", "queued", "blocked", "later")])
    stats = kit.store.stats()
    kit.store.close()
    kit.store = kit.open()
    assert kit.store.get([kit.id(name) for name in ("done", "running", "queued", "blocked", "later")]) == before
    assert kit.store.stats() == stats
    assert kit.publish("again", delay=60, key="k")[0].duplicate
    kit.ack("running")
    assert kit.claim(9) == ["queued", "blocked"]


@needs("durable")
def close_keeps_leases_and_epochs(kit: Kit) -> None:
    """A store that was restarted fences as before (§1)."""
    kit.publish("A")
    kit.claim()
    stale = kit.delivery("A")
    kit.store.close()
    kit.store = kit.open()
    assert kit.claim() == []
    kit.lose_leases()
    kit.claim()
    assert kit.renew(stale).lease_until is None
    kit.ack("A")
    assert kit.state("A") is TaskState.SUCCEEDED


def places_are_apart(kit: Kit) -> None:
    """Two namespaces share no task, key, queue and lock; flushing one leaves the other alone (§7, scope; base.py)."""
    other = kit.elsewhere()
    kit.publish("A", key="k", args=[1])
    kit.publish("B", key="k", args=[2], store=other)
    kit.store.pause_queue("q", True)
    assert kit.store.lock("leader", "one", 60_000_000)
    assert other.lock("leader", "two", 60_000_000)
    assert other.get([kit.id("A")]) == [None]
    assert kit.claim(9, store=other) == ["B"]
    other.flush()
    assert kit.state("A") is TaskState.QUEUED


def places_know_nothing_of_each_other(kit: Kit) -> None:
    """No verb of one namespace sees or changes a task, worker, limit or partition of another (§7, scope; base.py)."""
    other = kit.elsewhere()
    kit.publish("A", "B", partition="!x", limit=Limit("k", 1))
    kit.publish("dead")
    kit.claim(9, lease=3600)
    kit.die("dead")
    kit.store.heartbeat(_row("w1"), 60_000_000)
    ids = [kit.id(name) for name in ("A", "B", "dead")]
    assert other.get(ids) == [None] * 3
    assert other.cancel(ids) == [None] * 3
    assert other.replay(ids) == [False] * 3
    assert other.purge(ids) == 0
    assert (other.find(Find()).tasks, other.stats(), other.workers()) == ([], [], [])
    assert (other.limits(), other.partitions("q")) == ([], [])
    assert other.watch(kit.id("A"), PATIENCE)
    other.pause_queue("q", True)
    other.pause_partition("q", "!x", True)
    assert not other.skip_head("q", "!x")
    other.forget("w1")
    other.heartbeat(_row("w1"), 1)
    other.lock("leader", "one", 60_000_000)
    other.unlock("leader", "one")
    kit.advance(60)
    other.maintain(Maintain())
    assert other.delete_queue("q")
    other.flush()
    assert kit.states("A", "B", "dead") == [TaskState.RUNNING, TaskState.QUEUED, TaskState.FAILED]
    assert kit.limit("k") == (1, 0)
    kit.ack("A")
    assert kit.claim(9) == ["B"]


def places_keep_workers_of_one_name_apart(kit: Kit) -> None:
    """Two namespaces may each have a worker of the same id; each sees and forgets its own (base.py)."""
    other = kit.elsewhere()
    kit.store.heartbeat(_row("w1"), 60_000_000)
    other.heartbeat(_row("w1"), 60_000_000)
    assert [[worker.id for worker in store.workers()] for store in (kit.store, other)] == [["w1"], ["w1"]]
    other.forget("w1")
    assert [[worker.id for worker in store.workers()] for store in (kit.store, other)] == [["w1"], []]


def places_refuse_deliveries_of_each_other(kit: Kit) -> None:
    """A delivery is good in its own namespace only: elsewhere it is a lost lease, and nothing happens (§1)."""
    other = kit.elsewhere()
    kit.publish("A", "B", limit=Limit("k", 2))
    kit.publish("C", store=other)
    kit.claim(2)
    assert other.settle(Settle(items=[Settlement(kit.delivery("A"), Ack())])) == [False]
    (renewed,) = other.extend(Extend(items=[Renewal(kit.delivery("A"), True)]))
    assert renewed.lease_until is None
    assert (kit.state("A"), kit.info("A").attempt, kit.limit("k")) == (TaskState.RUNNING, 0, (2, 0))
    kit.ack("A", "B")


def _row(worker_id: str) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id, host="h", pid=1, queues=["q"], pool="solo", concurrency=1, version="1", started_at=0
    )
