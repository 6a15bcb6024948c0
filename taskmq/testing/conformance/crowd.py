"""Many at once: threads on one store, processes with stores of their own, and what each held when.

``most_at_once`` proves a limit from outside: a claimer *definitely* holds a task from after the claim returned until
before its settle is called. By the machine's monotonic clock, which all processes share, no instant may see more
definite holders than the limit allows, and a store that is exact can never fail that.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from taskmq.outcome import Ack
from taskmq.testing.conformance.kit import Kit
from taskmq.transport.base import Reserve, Settle, Settlement, Store

T = TypeVar("T")

PATIENCE = 60.0
CLAIMERS = 50
PROCESSES = 8

Job = Callable[[Store, Connection, int], None]
Work = Callable[[Store, int], T]
"""What one of a crowd does with a store; told its number."""


def at_once(count: int, job: Callable[[int], T]) -> list[T]:
    """Run the job in so many threads that start together; their answers in order."""
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        barrier.wait(PATIENCE)
        return job(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@contextmanager
def children(kit: Kit, count: int, job: Job) -> Iterator[list[Connection]]:
    """Fork so many processes, each with a store of its own; they begin together. Yields their pipes."""
    context = multiprocessing.get_context("fork")  # the factory may be a lambda, which only a fork can take along
    barrier = context.Barrier(count)

    def run(pipe: Connection, number: int) -> None:
        store = kit.open()
        barrier.wait(PATIENCE)
        job(store, pipe, number)
        store.close()

    pipes, processes = [], []
    for number in range(count):
        mine, theirs = context.Pipe()
        child = context.Process(target=run, args=(theirs, number), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test runner only wait
            child.start()
        theirs.close()
        pipes.append(mine)
        processes.append(child)
    try:
        yield pipes
        for child in processes:
            child.join(PATIENCE)
    finally:
        for child in processes:
            child.kill()
            child.join(PATIENCE)
        for pipe in pipes:
            pipe.close()


def answer(pipe: Connection) -> Any:
    """What a child sent; fails if it is silent."""
    assert pipe.poll(PATIENCE), "a child process gave no answer"
    return pipe.recv()


def answers(kit: Kit, count: int, job: Job) -> list[Any]:
    """What each of so many children sent, in order."""
    with children(kit, count, job) as pipes:
        return [answer(pipe) for pipe in pipes]


# ── fifty claimers ──


def crowd(kit: Kit, work: Work[T]) -> list[T]:
    """The answers of fifty who do this at once: in threads, and where the store is shared in eight processes."""
    if not kit.store.capabilities.shared:
        return at_once(CLAIMERS, lambda number: work(kit.store, number))

    def job(store: Store, pipe: Connection, number: int) -> None:
        mine = range(number, CLAIMERS, PROCESSES)
        pipe.send(at_once(len(mine), lambda index: work(store, mine[index])))

    return [one for some in answers(kit, PROCESSES, job) for one in some]


class Hold(NamedTuple):
    """A task that somebody certainly held from ``since`` to ``until``, in nanoseconds of the monotonic clock."""

    task_id: str
    since: int
    until: int


def claim_and_settle(*queues: str, rounds: int = 10, limit: int = 2, depth: int = 1) -> Work[list[Hold]]:
    """Work that claims, keeps ``depth`` claims in hands while it claims again, and acknowledges all in the end."""

    def work(store: Store, number: int) -> list[Hold]:
        params = Reserve(queues=queues or ("q",), limit=limit, worker=f"w{number}")
        holds: list[Hold] = []
        hands: deque[tuple[int, list[Settlement]]] = deque()

        def settle() -> None:
            since, items = hands.popleft()
            until = time.monotonic_ns()
            assert all(store.settle(Settle(items=items))), "a claimed task was lost"
            holds.extend(Hold(item.delivery.id, since, until) for item in items)

        for _ in range(rounds):
            got = store.reserve(params).deliveries
            if got:
                hands.append((time.monotonic_ns(), [Settlement(delivery, Ack()) for delivery in got]))
            if hands and (not got or len(hands) > depth):
                settle()
        while hands:
            settle()
        return holds

    return work


def most_at_once(holds: Iterable[Hold]) -> int:
    """The largest number of tasks that were certainly held at one instant."""
    steps = [(hold.since, 1) for hold in holds] + [(hold.until, -1) for hold in holds]
    held = most = 0
    for _, step in sorted(steps):  # at the same instant an end goes before a beginning
        held += step
        most = max(most, held)
    return most


def each_once(holds: Iterable[Hold]) -> list[str]:
    """The ids of the held tasks; fails if one was held twice."""
    ids = [hold.task_id for hold in holds]
    assert len(ids) == len(set(ids)), "a task was run twice"
    return ids
