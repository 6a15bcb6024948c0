"""A node in virtual time: connections that claim again at once, statements that take 10 ms, a driver that polls."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from taskmq.server.claim_pool import Accepted, Action, Answer, ClaimPool, Empty, Start

STATEMENT = 0.01


@dataclass
class Conn:
    """What one connection claims."""

    name: str
    app: str
    queues: tuple[str, ...] = ("q",)
    ns: str = "ns"
    caps: frozenset[Any] = frozenset({"h"})
    rk: bool = False


@dataclass
class Node:
    """``store(conn)`` is how many tasks a statement brings. ``eager``: claim again before the driver polls."""

    pool: ClaimPool
    store: Callable[[str], int] = lambda _: 1
    again: bool = True
    eager: bool = True
    now: float = 0.0
    conns: dict[str, Conn] = field(default_factory=dict)
    asked: dict[int, str] = field(default_factory=dict)
    log: list[tuple[float, str, str]] = field(default_factory=list)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: Any = field(default_factory=itertools.count)
    flying: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (round(when, 6), next(self.order), what))

    def claim(self, conn: Conn) -> None:
        self.conns[conn.name] = conn
        answer = self.pool.request(self.now, conn.name, conn.app, conn.ns, conn.queues, conn.caps, conn.rk, 1)
        if isinstance(answer, Accepted):
            self.asked[answer.id] = conn.name
        else:
            self.log.append((self.now, answer.code, conn.name))
        self.poll()

    def poll(self) -> None:
        self.act(self.pool.poll(self.now))

    def act(self, actions: list[Any]) -> None:
        """Carry out what the pool says."""
        actions_left: list[Action] = list(actions)
        for action in actions_left:
            name = self.asked[action.id]
            self.log.append((self.now, type(action).__name__, name))
            if isinstance(action, Start):
                app = self.conns[name].app
                self.flying[app] = self.flying.get(app, 0) + 1
                self.most[app] = max(self.most.get(app, 0), self.flying[app])
                self.at(self.now + STATEMENT, partial(self.complete, action.id))
            elif isinstance(action, (Answer, Empty)) and self.again:
                self.claim_later(name)

    def claim_later(self, name: str) -> None:
        if self.eager:
            conn = self.conns[name]
            answer = self.pool.request(self.now, conn.name, conn.app, conn.ns, conn.queues, conn.caps, conn.rk, 1)
            assert isinstance(answer, Accepted), answer
            self.asked[answer.id] = name
        else:
            self.at(self.now, lambda: self.claim(self.conns[name]))

    def complete(self, request_id: int) -> None:
        name = self.asked[request_id]
        self.flying[self.conns[name].app] -= 1
        self.act(self.pool.complete(self.now, request_id, self.store(name)))
        self.poll()

    def run(self, until: float) -> None:
        """Everything that happens before ``until``."""
        while True:
            timer = self.pool.next_timer(self.now)
            upcoming = self.events[0][0] if self.events else None
            moments = [round(m, 6) for m in (timer, upcoming) if m is not None]
            if not moments or min(moments) >= until:
                self.now = until
                return
            self.now = max(self.now, min(moments))
            if upcoming is not None and upcoming <= self.now:
                heapq.heappop(self.events)[2]()
            else:
                self.poll()

    def starts(self) -> list[str]:
        return [name for _, what, name in self.log if what == "Start"]

    def apps(self) -> str:
        return "".join(self.conns[name].app for name in self.starts())

    def times(self, what: str, name: str) -> list[float]:
        return [round(when, 4) for when, kind, who in self.log if (kind, who) == (what, name)]
