"""The claim pool's invariants, by random programs against a store that is known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from taskmq.server.claim_pool import (
    Accepted,
    Answer,
    Cancelled,
    ClaimPool,
    Empty,
    Error,
    Release,
    Start,
)

APPS, QUEUES, CONNS = 5, ("a", "b", "c"), 12


@dataclass
class World:
    """What really is in the store, and what the pool has been told."""

    pool: ClaimPool
    rng: random.Random
    now: float = 0.0
    tasks: Counter[tuple[str, str]] = field(default_factory=Counter)
    alive: dict[int, tuple[str, str, str, Any]] = field(default_factory=dict)
    flying: dict[int, int] = field(default_factory=dict)
    """Request → tasks that its statement took, at its start."""
    woken: dict[tuple[str, str], int] = field(default_factory=dict)
    zeros: dict[Any, tuple[int, float]] = field(default_factory=dict)
    """Key → turn of the start, and end, of the last statement that found nothing."""
    begun: dict[int, int] = field(default_factory=dict)
    starts: list[tuple[float, str]] = field(default_factory=list)
    history: list[tuple[str, str]] = field(default_factory=list)
    dead: bool = False
    conns: int = CONNS
    pace: tuple[float, ...] = (0.001, 0.01, 0.1, 0.4)
    turn: int = 0
    """Counts events, because several may happen at one time."""

    def request(self) -> None:
        conn = f"c{self.rng.randrange(self.conns)}"
        app = f"app{self.rng.randrange(APPS)}" if self.rng.random() < 0.3 else f"app{int(conn[1:]) % APPS}"
        ns = f"{app}-{self.rng.randrange(2)}"
        queues = tuple(sorted(self.rng.sample(QUEUES, self.rng.choice([1, 1, 2]))))
        caps, rk = frozenset(self.rng.sample(["x", "y"], 1)), self.rng.random() < 0.2
        answer = self.pool.request(self.now, conn, app, ns, queues, caps, rk, 1)
        if isinstance(answer, Accepted):
            assert not self.dead
            assert conn not in {c for c, *_ in self.alive.values()}, "I1: one a connection"
            self.alive[answer.id] = (conn, app, ns, ((ns, queues), caps, rk))
        self.poll()

    def publish(self) -> None:
        ns, queue = f"app{self.rng.randrange(APPS)}-{self.rng.randrange(2)}", self.rng.choice(QUEUES)
        self.tasks[ns, queue] += 1
        self.turn += 1
        self.woken[ns, queue] = self.turn
        self.pool.wake(self.now, ns, queue)
        self.poll()

    def gone(self) -> None:
        conn = f"c{self.rng.randrange(self.conns)}"
        self.pool.gone(self.now, conn)
        for request in [r for r, (c, *_) in self.alive.items() if c == conn]:
            del self.alive[request]
        self.poll()

    def land(self) -> None:
        if not self.flying:
            return
        request = self.rng.choice(sorted(self.flying))
        count = self.flying.pop(request)
        if self.rng.random() < 0.05:
            self.act(self.pool.fail(self.now, request, OSError()))
        else:
            if not count and request in self.alive:
                self.zeros[self.alive[request][3]] = (self.begun[request], self.now)
            self.act(self.pool.complete(self.now, request, count))
        self.poll()

    def tick(self) -> None:
        timer = self.pool.next_timer(self.now)
        self.now += self.rng.choice(self.pace)
        if timer is not None and self.rng.random() < 0.7:
            self.now = max(self.now, timer)
        self.poll()

    def shutdown(self) -> None:
        if self.rng.random() < 0.02:
            self.dead = True
            self.act(self.pool.shutdown(self.now))
            self.poll()

    def poll(self) -> None:
        self.act(self.pool.poll(self.now))
        assert self.pool.in_flight <= 4, "I1: slots"
        assert self.pool.in_flight + self.pool.pending <= 128, "I1: total"

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self.start(action.id)
            elif isinstance(action, Release):
                assert action.id not in self.alive
            else:
                assert isinstance(action, Answer | Empty | Error | Cancelled)
                assert action.id in self.alive, "I2: one answer each, and none for who is gone"
                _, _, ns, key = self.alive.pop(action.id)
                if isinstance(action, Empty) and not self.dead:
                    assert key in self.zeros, "I7: who waits for a turn waits for a turn"
                    begun, ended = self.zeros[key]
                    assert self.now - ended <= 1.0 + 1e-6, "I3: a zero at most a cycle old"
                    assert all(self.woken.get((ns, q), 0) < begun for q in key[0][1]), "I3: and no wake since"

    def start(self, request: int) -> None:
        conn, app, ns, key = self.alive[request]
        cell = int(self.now + 1e-9)
        self.starts.append((cell, conn))
        assert self.starts.count((cell, conn)) <= 4, "I1: four a connection and second"
        begun, ended = self.zeros.get(key, (0, float("-inf")))
        news = any(self.woken.get((ns, q), 0) > begun for q in key[0][1])
        assert news or self.now >= ended + 1.0 - 1e-6, "I5: what is known to be empty is not asked"
        self.turn += 1
        self.begun[request] = self.turn
        taken = next((queue for queue in key[0][1] if self.tasks[ns, queue]), None)
        if taken is not None:
            self.tasks[ns, taken] -= 1
        self.flying[request] = int(taken is not None)
        flying_apps = Counter(self.alive[r][1] for r in self.flying if r in self.alive)
        assert flying_apps[app] <= 1, "I1: one an application"


def run(seed: int, make: Callable[[], ClaimPool] = ClaimPool, steps: int = 400) -> None:
    rng = random.Random(seed)
    world = World(make(), rng)
    busy = seed % 2 == 0  # few connections that always find something: it is the budget that stops them
    if busy:
        world.conns, world.pace = 2, (0.001, 0.01)
        world.tasks.update({(f"app{a}-{n}", q): 50 for a in range(APPS) for n in range(2) for q in QUEUES})
    verbs = [world.request] * 6 + [world.land] * 6 + [world.tick] * 3 + [world.publish, world.gone, world.shutdown]
    for _ in range(steps):
        rng.choice(verbs)()
    while world.flying:
        world.land()
    for _ in range(200):  # everybody gets an answer in the end
        if not world.alive:
            return
        world.now += 0.25
        world.poll()
        while world.flying:
            world.land()
    raise AssertionError(f"I2, I6: {len(world.alive)} requests were never answered")


@pytest.mark.parametrize("block", range(10))
def test_random_programs_keep_the_invariants(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        run(seed)


class NoComparison(ClaimPool):
    """A zero is believed though a wake overtook it."""

    def complete(self, now: float, id: int, count: int) -> Any:  # noqa: A002
        self._requests[id].stale = False
        return ClaimPool.complete(self, now, id, count)


class WakeKeepsCache(ClaimPool):
    def wake(self, now: float, ns: str, queue: str) -> None:
        kept = self._empties.copy()
        ClaimPool.wake(self, now, ns, queue)
        self._empties = kept


class NoBudget(ClaimPool):
    def _has_budget(self, request: Any) -> bool:
        return True


class OrphanAnswered(ClaimPool):
    def complete(self, now: float, id: int, count: int) -> Any:  # noqa: A002
        self._requests[id].orphan = False
        return ClaimPool.complete(self, now, id, count)


class ForgetfulOfBudget(ClaimPool):
    def gone(self, now: float, conn: Any) -> None:
        ClaimPool.gone(self, now, conn)
        self._used.pop(conn, None)


MUTANTS: list[Callable[[], ClaimPool]] = [
    NoComparison, WakeKeepsCache, NoBudget, OrphanAnswered, ForgetfulOfBudget, lambda: ClaimPool(per_app=4)
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_the_random_programs_notice_a_fault(mutant: Callable[[], ClaimPool]) -> None:
    def programs() -> None:
        for seed in range(200):
            run(seed, mutant)

    with pytest.raises((AssertionError, KeyError)):
        programs()


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_while_an_application_waits_each_other_one_starts_at_most_once(slots: int) -> None:
    """I4, with applications of very different size that are always ready."""
    pool = ClaimPool(slots=slots, per_conn_cycle=10**9)
    sizes = {"A": 60, "B": 1, "C": 7, "D": 30, "E": 2}
    starts: Counter[str] = Counter()
    owner: dict[int, tuple[str, str]] = {}

    def ask(app: str, conn: str) -> None:
        answer = pool.request(now, conn, app, f"{conn}-ns", ["q"], ["h"], False, 1)
        assert isinstance(answer, Accepted)
        owner[answer.id] = (app, conn)

    now = 0.0
    for app, size in sizes.items():
        for i in range(size):
            ask(app, f"{app}{i}")
    flying = [action.id for action in pool.poll(now)]
    for _ in range(500):
        now += 0.01
        landed, flying = flying, []
        for request in landed:
            starts[owner[request][0]] += 1
            pool.complete(now, request, 1)
            ask(*owner[request])
        flying += [action.id for action in pool.poll(now)]
        assert max(starts.values()) - min(starts[app] for app in sizes) <= 1
