"""Several processes on one store, and what is left when one is killed (§10). For stores that are shared."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from multiprocessing.connection import Connection

from taskmq.outcome import Ack
from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.conformance.crowd import PATIENCE, answer, answers, children
from taskmq.testing.conformance.kit import LEASE, Kit, names, needs
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store


@needs("shared")
def processes_share_out_the_tasks(kit: Kit) -> None:
    """Workers in three processes take each task once, and none is lost (§10.1, §10.2)."""
    wanted = names("T", 150)
    kit.publish(*wanted)

    def job(store: Store, pipe: Connection, number: int) -> None:
        mine: list[str] = []
        for _ in wanted:
            got = store.reserve(Reserve(queues=["q"], limit=3, worker=f"w{number}")).deliveries
            if not got:
                break
            assert all(store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in got])))
            mine += [delivery.id for delivery in got]
        pipe.send(mine)

    done = [kit.name(task_id) for mine in answers(kit, 3, job) for task_id in mine]
    assert Counter(done) == Counter(wanted)
    assert set(kit.states(*wanted)) == {TaskState.SUCCEEDED}


@needs("shared")
def processes_share_keys(kit: Kit) -> None:
    """One key, one task, from several processes at once (§10.7)."""
    messages = [kit.message(f"T{number}", key="k", args=[1]) for number in range(4)]

    def job(store: Store, pipe: Connection, number: int) -> None:
        (receipt,) = store.publish(Publish(messages=[messages[number]]))
        pipe.send((receipt.id, receipt.duplicate))

    told = answers(kit, 4, job)
    assert len({task_id for task_id, _ in told}) == 1
    assert sorted(duplicate for _, duplicate in told) == [False, True, True, True]


@needs("shared")
def processes_share_limits(kit: Kit) -> None:
    """max_running holds over several processes that claim at once (§8, §10.6)."""
    kit.configure(max_running=5)
    kit.publish(*names("T", 40))

    def job(store: Store, pipe: Connection, number: int) -> None:
        claimed = 0
        for _ in range(5):
            claimed += len(store.reserve(Reserve(queues=["q"], limit=2, worker=f"w{number}")).deliveries)
        pipe.send(claimed)

    assert sum(answers(kit, 3, job)) == 5
    assert kit.stats().running == 5


@needs("shared")
def processes_share_ordered_partitions(kit: Kit) -> None:
    """Of several processes that ask at once one gets an ordered partition (§6)."""
    kit.publish(*names("T", 9), partition="!x")

    def job(store: Store, pipe: Connection, number: int) -> None:
        got = store.reserve(Reserve(queues=["q"], limit=4, worker=f"w{number}"))
        pipe.send([delivery.id for delivery in got.deliveries])

    claims = [mine for mine in answers(kit, 3, job) if mine]
    assert [[kit.name(task_id) for task_id in mine] for mine in claims] == [names("T", 4)]


@needs("shared")
def processes_killed_lose_nothing(kit: Kit) -> None:
    """A worker killed with -9 loses nothing: its tasks come back when their leases end, in order (§10.1, §2)."""
    kit.publish(*names("T", 6))

    def job(store: Store, pipe: Connection, number: int) -> None:
        got = store.reserve(Reserve(queues=["q"], limit=3, worker="doomed")).deliveries
        store.settle(Settle(items=[Settlement(got[0], Ack())]))
        pipe.send(None)
        os.kill(os.getpid(), signal.SIGKILL)

    answers(kit, 1, job)
    assert kit.states("T1", "T2") == [TaskState.SUCCEEDED, TaskState.RUNNING]
    assert kit.claim(9, worker="alive") == ["T4", "T5", "T6"]
    kit.ack("T4", "T5", "T6")
    kit.advance(LEASE)
    assert kit.claim(9, worker="alive") == ["T2", "T3"]


@needs("shared")
def processes_killed_free_their_slots(kit: Kit) -> None:
    """A worker killed with -9 holds no limit, no place and no partition longer than its leases (§8, §10.1)."""
    kit.configure(max_running=3)
    kit.publish(*names("L", 3), limit=Limit("k", 1), max_attempts=9)
    kit.publish(*names("P", 3), partition="p", most=1, max_attempts=9)
    kit.publish(*names("X", 3), partition="!x", max_attempts=9)

    def job(store: Store, pipe: Connection, number: int) -> None:
        got = store.reserve(Reserve(queues=["q"], limit=9, worker="doomed")).deliveries
        pipe.send([delivery.id for delivery in got])
        os.kill(os.getpid(), signal.SIGKILL)

    (held,) = answers(kit, 1, job)
    assert sorted(kit.name(task_id) for task_id in held) == ["L1", "P1", "X1"]
    assert kit.claim(9, worker="alive") == []
    kit.advance(LEASE)
    assert sorted(kit.claim(9, worker="alive")) == ["L1", "P1", "X1"]
    kit.ack("L1", "P1", "X1")
    assert sorted(kit.claim(9, worker="alive")) == ["L2", "P2", "X2"]


@needs("shared")
def processes_killed_while_publishing_tell_the_truth(kit: Kit) -> None:
    """A publish that returned is in the store, though its process was killed right after (§10.1)."""
    messages = [kit.message(f"T{number}") for number in range(300)]

    def job(store: Store, pipe: Connection, number: int) -> None:
        for message in messages:
            store.publish(Publish(messages=[message]))
            pipe.send(message.id)

    told: list[str] = []
    with children(kit, 1, job) as (pipe,):
        told.append(answer(pipe))
        while len(told) < 50:
            told.append(answer(pipe))
        kit.store.publish(Publish(messages=[]))
        (child,) = multiprocessing.active_children()
        child.kill()
        child.join(PATIENCE)
        try:
            while pipe.poll(0):
                told.append(pipe.recv())
        except (EOFError, ConnectionError):
            pass
    stored = {kit.id(name) for name in kit.claim(300)}
    assert set(told) <= stored
    kit.publish("after")
    assert kit.claim(9) == ["after"]
