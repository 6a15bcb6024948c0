"""Whose claim may ask the database next. Essay: fairness of claim turns on a node.

Workers' connections do not each query the database. Their claims stand here, and a few at a time – four a node, one an
application – become statements. The turn goes to the *application* that has waited longest, because the application is
who pays: namespaces, queues, connections and workers can be made at will, so a turn for any of them could be won by
making more. Within an application the turn goes round its *lanes* (the set of queues named in a claim), and within a
lane to the request that came first.

An application that asks and asks for nothing must not use its turns up on that. So a zero answer is remembered for
one cycle, for exactly its key – lane, capabilities, support of resource keys – and requests with that key are
*parked*: they cost no statement and no turn. What a zero proves ends with the news that something arrived: ``wake``
drops it. The news may also come while the statement is on its way, after it has looked and before its answer is here;
then the zero proves nothing, is not remembered, and the claim looks again. Without that comparison a task could lie
for a second beside idle workers, again and again.

A connection starts at most four statements in each cell of a fixed grid of seconds. One that goes and comes back keeps
what it has spent, or leaving would win turns. A burst of eight around an edge of the grid is allowed.

A request that waits for its turn never times out: it is the turn that ends its waiting. Only one that is parked, whose
emptiness is known, is answered after a cycle, so that a worker hears from us about once a second.

The pool is pure: no I/O, no clock, no lock. Time comes in, actions go out; the driver (``claims.py``) runs the
statements, calls ``poll`` after every other call, and sets a timer at ``next_timer()``. A busy node calls it a few
thousand times a second with a hundred requests in line, so those are kept by application and lane, and looked through
only from the one whose turn it is; scans over all of them took a fifth of the node's time.

Rejected: *a deadline for waiting requests* – a busy node would answer "empty" where there is work; *weights by number
of workers* – bought turns; *a shared cache of empties that authorises anything* – it only suppresses questions.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from taskmq.server.claim_actions import Accepted, Action, Answer, Cancelled, Empty, Error, Rejected, Release, Start

EPSILON = 1e-9
"""Seconds by which a clock's rounding may fall short of a cycle's edge."""


Lane = tuple[str, tuple[str, ...]]
"""Namespace, and the sorted queues that a claim names."""
Key = tuple[Lane, frozenset[Hashable], bool]
"""Lane, exact capability set, support of resource keys: what a zero answer is about."""

READY: Final = "ready"
PARKED: Final = "parked"
IN_FLIGHT: Final = "in flight"
State = Literal["ready", "parked", "in flight"]


@dataclass(slots=True, eq=False)
class _Request:
    id: int
    conn: Hashable
    app: str
    key: Key
    n: int
    deadline: float
    state: State = READY
    stale: bool = False
    """Something arrived in its lane since its statement was started."""
    orphan: bool = False

    @property
    def lane(self) -> Lane:
        return self.key[0]

    def touches(self, ns: str, queue: str) -> bool:
        return self.lane[0] == ns and queue in self.lane[1]


@dataclass(slots=True)
class ClaimPool:
    """Claims in line, parked and in flight on one node; see the module's essay.

    ``slots``           statements at once
    ``per_app``         of them, for one application
    ``total``           requests waiting, parked and in flight
    ``per_conn_cycle``  statements that one connection may start in a cell of the grid
    ``cache``           zero answers remembered
    ``cycle``           seconds: width of the grid's cells, life of a zero answer, longest time parked
    ``t0``              where the grid begins
    """

    slots: int = 4
    per_app: int = 1
    total: int = 128
    per_conn_cycle: int = 4
    cache: int = 128
    cycle: float = 1.0
    t0: float = 0.0
    closing: bool = False
    _requests: dict[int, _Request] = field(default_factory=dict)
    """By id, in order of arrival; each is also in one of the next three, by its state."""
    _line: dict[str, dict[Lane, list[_Request]]] = field(default_factory=dict)
    """READY ones: application → lane → in order of arrival."""
    _parked: dict[int, _Request] = field(default_factory=dict)
    _flying: dict[int, _Request] = field(default_factory=dict)
    _of_conn: dict[Hashable, _Request] = field(default_factory=dict)
    """Connection → its request, if it has one that is no orphan."""
    _empties: OrderedDict[Key, float] = field(default_factory=OrderedDict)
    """Key → when its zero answer proves nothing any more."""
    _rings: OrderedDict[str, OrderedDict[Lane, None]] = field(default_factory=OrderedDict)
    """Applications in order of their turns; of each, its lanes in order of theirs."""
    _used: dict[Hashable, int] = field(default_factory=dict)
    """Connection → statements started in this cell of the grid."""
    _spent: set[Hashable] = field(default_factory=set)
    """Those that may start none any more."""
    _cell: int = 0
    _last_id: int = 0

    # ── what the driver calls ──

    def request(
        self,
        now: float,
        conn: Hashable,
        app: str,
        ns: str,
        queues: Iterable[str],
        caps: Iterable[Hashable],
        rk: bool,
        n: int,
    ) -> Accepted | Rejected:
        """A connection claims up to ``n`` tasks of these queues, for exactly these capabilities."""
        if self.closing:
            return Rejected("SHUTTING_DOWN")
        if conn in self._of_conn:
            return Rejected("CLAIM_PENDING")
        if len(self._requests) >= self.total:
            return Rejected("NODE_CLAIMS")
        self._last_id += 1
        key: Key = ((ns, tuple(sorted(set(queues)))), frozenset(caps), rk)
        request = _Request(self._last_id, conn, app, key, n, now + self.cycle)
        self._requests[request.id] = self._of_conn[conn] = request
        self._join(request)
        return Accepted(request.id)

    def poll(self, now: float) -> list[Start | Empty]:
        """What is to be done now."""
        self._roll(now)
        actions: list[Start | Empty] = []
        for request in _by_arrival(self._parked):
            if not self._cached(request.key, now):  # looked at first: an answer must rest on a zero that still holds
                self._join(request)
            elif now + EPSILON >= request.deadline:
                actions.append(self._empty(request))
        while not self.closing and len(self._flying) < self.slots:
            picked = self._pick()
            if picked is None:
                break
            if self._cached(picked.key, now):  # no turn is spent
                self._park(picked)
                if now + EPSILON >= picked.deadline:
                    actions.append(self._empty(picked))
            else:
                actions.append(self._start(picked))
        return actions

    def complete(self, now: float, id: int, count: int) -> list[Action]:  # noqa: A002 - the contract's name
        """The statement of a request claimed ``count`` tasks."""
        request = self._requests[id]
        if request.orphan:
            self._drop(request)
            return [Release(id, count)] if count else []
        if count:
            self._drop(request)
            return [Answer(id, count)]
        if self.closing:
            return [self._empty(request)]
        if request.stale:
            self._join(request)
            return []
        self._empties.pop(request.key, None)
        self._empties[request.key] = now + self.cycle
        if len(self._empties) > self.cache:
            self._empties.popitem(last=False)
        if now + EPSILON >= request.deadline:
            return [self._empty(request)]
        self._park(request)
        return []

    def fail(self, now: float, id: int, error: object = None) -> list[Action]:  # noqa: A002
        """The statement of a request failed; nothing is known of the queues by that."""
        request = self._requests[id]
        self._drop(request)
        return [] if request.orphan else [Error(id, "UNAVAILABLE")]

    def wake(self, now: float, ns: str, queue: str) -> None:
        """Something may be there for claims of this queue: a task arrived, a limit freed, a pause ended."""
        for key in [key for key in self._empties if key[0][0] == ns and queue in key[0][1]]:
            del self._empties[key]
        for request in self._flying.values():
            request.stale = request.stale or request.touches(ns, queue)
        for request in _by_arrival(self._parked):
            if request.touches(ns, queue):
                self._join(request)

    def gone(self, now: float, conn: Hashable) -> None:
        """The connection is gone. What it has spent of its budget stays spent until the cycle's edge."""
        request = self._of_conn.pop(conn, None)
        if request is None:
            return
        if request.state == IN_FLIGHT:
            request.orphan = True
        else:
            self._drop(request)

    def shutdown(self, now: float) -> list[Action]:
        """No more statements. What is in flight still completes."""
        self.closing = True
        waiting = [request for request in self._requests.values() if request.state != IN_FLIGHT]
        for request in waiting:
            self._drop(request)
        return [Cancelled(request.id) for request in waiting]

    def next_timer(self, now: float) -> float | None:
        """When ``poll`` must be called although nothing else happens; None: never."""
        times = [
            min(request.deadline, self._empties.get(request.key, request.deadline)) for request in self._parked.values()
        ]
        if not self.closing and any(self._waits(conn) for conn in self._spent):
            times.append(self.t0 + (self._cell_of(now) + 1) * self.cycle)
        return min(times, default=None)

    # ── what it shows ──

    @property
    def in_flight(self) -> int:
        """Statements that run now."""
        return len(self._flying)

    def knows(self, id: int) -> bool:  # noqa: A002
        """Whether a request is not over yet."""
        return id in self._requests

    @property
    def pending(self) -> int:
        """Requests in line and parked."""
        return len(self._requests) - self.in_flight

    @property
    def cached(self) -> int:
        """Zero answers remembered."""
        return len(self._empties)

    def hopeful(self) -> set[Lane]:
        """Lanes with parked requests, of which no statement is under way."""
        return {request.lane for request in self._parked.values()} - {r.lane for r in self._flying.values()}

    def stats(self, app: str) -> dict[str, int]:
        """Numbers of one application."""
        states = [r.state for r in self._requests.values() if r.app == app]
        flying = states.count(IN_FLIGHT)
        return {"in_flight": flying, "pending": len(states) - flying}

    # ── inside ──

    def _cell_of(self, now: float) -> int:
        return math.floor((now - self.t0) / self.cycle + EPSILON)

    def _roll(self, now: float) -> None:
        cell = self._cell_of(now)
        if cell != self._cell:
            self._cell = cell
            self._used.clear()
            self._spent.clear()

    def _cached(self, key: Key, now: float) -> bool:
        end = self._empties.get(key)
        return end is not None and now + EPSILON < end

    def _waits(self, conn: Hashable) -> bool:
        """Whether a connection has a request in line."""
        request = self._of_conn.get(conn)
        return request is not None and request.state == READY

    def _join(self, request: _Request) -> None:
        """Into the line: its application and its lane enter their rings at the end, unless they are there."""
        self._leave(request)
        request.state = READY
        lane = self._line.setdefault(request.app, {}).setdefault(request.lane, [])
        bisect.insort(lane, request, key=_id_of)
        self._rings.setdefault(request.app, OrderedDict()).setdefault(request.lane, None)

    def _leave(self, request: _Request) -> None:
        """Out of where its state has put it."""
        self._parked.pop(request.id, None)
        self._flying.pop(request.id, None)
        lanes = self._line.get(request.app, {})
        lane = lanes.get(request.lane, [])
        if request in lane:
            lane.remove(request)
            if not lane:
                del lanes[request.lane]
            if not lanes:
                del self._line[request.app]

    def _park(self, request: _Request) -> None:
        self._leave(request)
        request.state = PARKED
        self._parked[request.id] = request

    def _drop(self, request: _Request) -> None:
        """It is over."""
        self._leave(request)
        del self._requests[request.id]
        if self._of_conn.get(request.conn) is request:
            del self._of_conn[request.conn]

    def _empty(self, request: _Request) -> Empty:
        self._drop(request)
        return Empty(request.id)

    def _start(self, request: _Request) -> Start:
        self._leave(request)
        request.state, request.stale = IN_FLIGHT, False
        self._flying[request.id] = request
        used = self._used[request.conn] = self._used.get(request.conn, 0) + 1
        if used >= self.per_conn_cycle:
            self._spent.add(request.conn)
        self._rings.move_to_end(request.app)
        self._rings[request.app].move_to_end(request.lane)
        return Start(request.id)

    def _pick(self) -> _Request | None:
        """The request whose turn it is. Rings are left where they are found empty, not before.

        So an application with one connection, which is out of line between an answer and its next claim, keeps the
        turn it has come to.
        """
        for app in list(self._rings):
            ready = self._line.get(app, {})
            flying = sum(request.app == app for request in self._flying.values())
            if not ready and not flying:
                del self._rings[app]
            elif flying < self.per_app:
                request_of_app = next(self._eligible(app, ready), None)
                if request_of_app is not None:
                    return request_of_app
        return None

    def _eligible(self, app: str, ready: dict[Lane, list[_Request]]) -> Iterator[_Request]:
        """The application's requests that may start, by the turns of their lanes, then by arrival."""
        ring = self._rings[app]
        for lane in list(ring):
            if lane not in ready:
                del ring[lane]
                continue
            yield from filter(self._has_budget, ready[lane])

    def _has_budget(self, request: _Request) -> bool:
        return request.conn not in self._spent


_id_of = operator.attrgetter("id")


def _by_arrival(requests: dict[int, _Request]) -> list[_Request]:
    return sorted(requests.values(), key=_id_of) if requests else []


__all__ = ["Accepted", "Action", "Answer", "Cancelled", "ClaimPool", "Empty", "Error", "Rejected", "Release", "Start"]
