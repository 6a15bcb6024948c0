"""What one reserve takes: the claim rule, once (model.md §5, §6, §11).

``choose`` is given the candidate queues with their flows and says which tasks to take, in order. Memory, SQL and
Redis Cluster call it; the single-Redis script is its twin and runs the same vectors.

Between queues
    *band* = the highest priority among the queues' heads (an aging queue counts as band 0). In the band the smallest
    ``F = served / weight`` goes next, ties by name. ``served`` lives in the store, so it is fair across processes.
    The plain rule has a hole: a queue that was idle, new or unsubscribed has a small F and would own the workers
    until it has caught up. So each candidate competes with ``max(F, top - 10)``, ``top`` the largest F in the band,
    and the raised value is what is written back. Two queues that are both backlogged never differ by more than one
    turn, far less than 10, so they never notice.
    The write-back is ``served + 1`` or ``(top - 10) * weight + 1``, in doubles, and not ``E * weight + 1`` in both
    cases: ``29 / 7 * 7`` is not 29.

Between flows of a queue
    Highest head priority, then smallest tag (turns.py), then the unpartitioned flow, then the code. In an aging queue
    the heads compete by their own keys: waiting is already the fairness there.

A batch is n singles
    ``choose(queues, n)`` gives what n calls with 1 would give at this instant: after each pick the flow's key and the
    queue's ``served`` are what that single claim would have left. An ordered partition gives its head and is out.
    Only when nothing else is eligible and places are left, *followers* fill them: the next task of each ordered
    partition claimed in this batch, one each in turn. They take no turn, but count as served.

Reading little
    With a million partitions nobody may read them all. Flows and lines come lazily, in order, through ``read``
    callables; a flow that has not been read sorts after every flow that has (a turn only makes a flow's key larger),
    so the best of what was read is the best of all unless its key has grown past the last one read. For n picks at
    most n flows and n + 1 keys of each are read.

Gates
    A queue's ``room`` (``max_running``, ``rate``) and a flow's (``Partition(max_running=)``) are numbers. What depends
    on the single task is asked of the queue's ``gate``: a head that this claim cannot run *hides* its partition; a
    head whose limit's key is full is *parked* – it leaves its line and takes no turn. Two queues may share a key, so
    with gates every candidate's head is looked at again before each pick. At most so many are parked as the gate
    allows, then the claim stops where it is.

Rejected: *each worker claims optimistically and repairs* – measured at 13 picks lost for each won, and 4 turns of
unfairness where 1 is allowed; *random pick by weight* – exceeds one turn soon; *band counters in the store* – state
that must be repaired after each crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Protocol

from taskmq.names import MAX_PRIORITY
from taskmq.policy.order import Key
from taskmq.policy.turns import after_turn

CATCH_UP = 10.0
"""Most turns that a queue may be behind the leader of its band and still catch up (defaults.md)."""

UNPARTITIONED = ""
"""The code of the flow of all unpartitioned tasks; it sorts before every real code."""


class Gate(Protocol):
    """What stands between the head of a line and this claim, beside its turn (model.md §8)."""

    def hides(self, key: Key) -> bool:
        """Whether this claim cannot run the task, so its partition is hidden from it."""
        ...

    def full(self, key: Key) -> bool:
        """Whether the task's limit has no slot left."""
        ...

    def start(self, key: Key) -> None:
        """The task is picked: it takes a slot of its limit, if it has one."""
        ...

    def may_park(self) -> bool:
        """Whether one more task may be parked in this claim; counts it."""
        ...


class Flow:
    """One flow during one claim.

    ``keys`` are the first keys of its line that were read; ``read(k)`` appends up to k more and is None at the end.
    ``room``: how many more of its tasks may run, None for no limit.
    After ``choose``: ``taken`` tasks were picked, ``tag`` is what must be stored, and ``keys`` from ``position`` on are
    what is left of its line.
    """

    __slots__ = ("code", "keys", "ordered", "position", "read", "ref", "room", "tag", "taken", "weight")

    def __init__(
        self,
        code: str,
        *,
        keys: list[Key],
        read: Callable[[int], list[Key]] | None,
        tag: int = 0,
        weight: int = 1,
        ordered: bool = False,
        room: int | None = None,
        ref: Any = None,
    ) -> None:
        self.code = code
        self.keys = keys
        self.read = read
        self.tag = tag
        self.weight = weight
        self.ordered = ordered
        self.room = room
        self.ref = ref
        self.taken = 0
        self.position = 0

    def head(self) -> Key | None:
        """The next key that was neither taken nor parked, read if need be."""
        if self.position == len(self.keys) and self.read is not None:
            more = self.read(len(self.keys) + 1)
            self.keys += more
            if not more:
                self.read = None
        return self.keys[self.position] if self.position < len(self.keys) else None


_HeapKey = tuple[int, int, int, str]


class Queue:
    """One candidate queue during one claim.

    ``flows``   eligible flows in turn order, as far as they were read; ``read(k)`` gives up to k more, or [] at the end
    ``turns``   whether virtual time counts: a strict queue that knows partitions
    ``room``    how many more of its tasks may start, None for no limit
    ``gate``    asked about every head, if there is anything to ask
    After ``choose``: ``served`` and ``v`` are what must be stored; ``taken`` tasks were picked; ``parked`` are to be
    parked, in this order.
    """

    __slots__ = (
        "_heap",
        "_last",
        "_last_read",
        "_unread",
        "aging",
        "flows",
        "gate",
        "name",
        "parked",
        "plain",
        "read",
        "ref",
        "room",
        "served",
        "taken",
        "turns",
        "v",
        "weight",
    )

    def __init__(
        self,
        name: str,
        *,
        flows: list[Flow],
        read: Callable[[int], list[Flow]] | None = None,
        plain: Flow | None = None,
        weight: float = 1,
        served: float = 0.0,
        v: int = 0,
        aging: bool = False,
        turns: bool = False,
        room: int | None = None,
        gate: Gate | None = None,
        ref: Any = None,
    ) -> None:
        self.name = name
        self.weight = weight
        self.served = served
        self.v = v
        self.aging = aging
        self.turns = turns
        self.room = room
        self.gate = gate
        self.ref = ref
        self.taken = 0
        self.parked: list[tuple[Flow, Key]] = []
        self.flows = flows
        self.plain = plain
        self.read = read
        self._unread = 0
        self._last_read: _HeapKey | None = None
        self._heap: list[tuple[_HeapKey, Flow]] = []
        self._last: Flow | None = None
        if plain is not None:
            self._stand(plain)
        self._admit()

    def _key(self, flow: Flow) -> _HeapKey:
        key = flow.keys[flow.position]
        return (key[0], key[1], key[2], flow.code) if self.aging else (key[0], flow.tag, 0, flow.code)

    def _stand(self, flow: Flow) -> None:
        """The flow competes with its next key, if it has one that this claim may take."""
        key = flow.head()
        if key is not None and flow.room != 0 and (self.gate is None or not self.gate.hides(key)):
            heappush(self._heap, (self._key(flow), flow))

    def _admit(self) -> None:
        """Let flows that were read compete."""
        for flow in self.flows[self._unread :]:
            flow.head()
            self._last_read = self._key(flow)
            self._stand(flow)
        self._unread = len(self.flows)

    def best(self) -> Flow | None:
        """The flow whose turn it is, or None when nothing is eligible; parks what its limit does not let start."""
        flow = self._last
        if flow is not None:
            self._last = None
            self._stand(flow)
        while (
            (flow := self._first()) is not None and self.gate is not None and self.gate.full(flow.keys[flow.position])
        ):
            if not self.gate.may_park():
                raise _Enough
            self._park(heappop(self._heap)[1])
        return flow

    def _first(self) -> Flow | None:
        """The first in line, reading on as far as that depends on it."""
        while self.read is not None and (
            not self._heap or self._last_read is None or self._heap[0][0] > self._last_read
        ):
            more = self.read(max(1, len(self.flows)))
            if not more:
                self.read = None
            self.flows += more
            self._admit()
        return self._heap[0][1] if self._heap else None

    def _park(self, flow: Flow) -> None:
        """Its head leaves the line without a turn; an ordered partition waits with its head."""
        self.parked.append((flow, flow.keys[flow.position]))
        flow.position += 1
        if not flow.ordered:
            self._stand(flow)

    def band(self) -> int:
        """The priority with which the queue competes; only while ``best`` is not None."""
        return 0 if self.aging else MAX_PRIORITY - self._heap[0][0][0]

    def take(self) -> tuple[Flow, Key]:
        """Take the best flow's head and its turn; only while ``best`` is not None."""
        flow = heappop(self._heap)[1]
        key = flow.keys[flow.position]
        self._count(flow, key)
        if self.turns:
            self.v, flow.tag = after_turn(self.v, flow.tag, flow.weight)
        if not flow.ordered:
            self._last = flow
        return flow, key

    def is_line(self) -> bool:
        """Whether it knows no partition and asks nothing: then its line is the answer."""
        return not self.turns and self.read is None and not self.flows and self.gate is None

    def take_line(self, n: int) -> list[Pick]:
        """Take n tasks of a queue that stands alone and knows no partition: its line is the answer."""
        plain = self.plain
        if plain is None:
            return []
        n = n if self.room is None else min(n, self.room)
        while len(plain.keys) < n and plain.read is not None:
            plain.position = len(plain.keys)
            plain.head()
        keys = plain.keys[:n]
        plain.position = plain.taken = self.taken = len(keys)
        self.served += len(keys)
        return [(self, plain, key) for key in keys]

    def follow(self, flow: Flow) -> Key | None:
        """Take a follower of a claimed ordered partition: no turn, no tag. One that may not start ends the run."""
        key = flow.head()
        if key is None or (self.gate is not None and (self.gate.hides(key) or self.gate.full(key))):
            return None
        self._count(flow, key)
        self.served += 1
        return key

    def _count(self, flow: Flow, key: Key) -> None:
        flow.position += 1
        flow.taken += 1
        self.taken += 1
        if flow.room is not None:
            flow.room -= 1
        if self.room is not None:
            self.room -= 1
        if self.gate is not None:
            self.gate.start(key)


class _Enough(Exception):
    """So many tasks have been parked that the claim ends with what it has."""


Pick = tuple[Queue, Flow, Key]
PrefetchFollowers = Callable[[Sequence[tuple[Queue, Flow]], int], None]


def choose(queues: Sequence[Queue], n: int, prefetch: PrefetchFollowers | None = None) -> list[Pick]:
    """The next ``n`` tasks of these queues, in order; updates the queues' and flows' state to what must be stored.

    ``prefetch(flows, k)`` may read k more keys of each flow in one exchange before followers are taken.
    """
    if n < 1:
        return []
    if len(queues) == 1 and queues[0].is_line():
        return queues[0].take_line(n)
    picks: list[Pick] = []
    with suppress(_Enough):
        claimed = _take_heads(picks, queues, n)
        _take_followers(picks, claimed, n, prefetch)
    return picks


def _take_heads(picks: list[Pick], queues: Sequence[Queue], n: int) -> list[tuple[Queue, Flow]]:
    """Pick by pick in turn, until there are n or nothing is eligible; returns the ordered partitions among them."""
    claimed: list[tuple[Queue, Flow]] = []
    gated = any(queue.gate is not None for queue in queues)
    candidates = [queue for queue in queues if queue.room != 0 and queue.best() is not None]
    while candidates:
        queue = candidates[0] if len(candidates) == 1 else _next_queue(candidates)
        flow, key = queue.take()
        if len(candidates) == 1:
            queue.served += 1
        picks.append((queue, flow, key))
        if flow.ordered:
            claimed.append((queue, flow))
        if len(picks) == n:
            break
        if gated:  # a limit's key may be shared: what was first elsewhere may not start any more
            candidates = [queue for queue in candidates if queue.room != 0 and queue.best() is not None]
        elif queue.room == 0 or queue.best() is None:
            candidates.remove(queue)
    return claimed


def _next_queue(candidates: Sequence[Queue]) -> Queue:
    """Whose turn it is between queues, with its service counted."""
    bands = [queue.band() for queue in candidates]
    band = max(bands)
    rivals = [(queue.served / queue.weight, queue) for queue, own in zip(candidates, bands, strict=True) if own == band]
    top = max(f for f, _ in rivals)
    floor = top - CATCH_UP
    f, queue = min(rivals, key=lambda rival: (max(rival[0], floor), rival[1].name))
    queue.served = queue.served + 1 if f >= floor else floor * queue.weight + 1
    return queue


def _take_followers(
    picks: list[Pick], claimed: list[tuple[Queue, Flow]], n: int, prefetch: PrefetchFollowers | None
) -> None:
    """Fill the places that are left with runs: one more task of each claimed ordered partition, round after round."""
    while claimed and len(picks) < n:
        if prefetch is not None:
            prefetch([pair for pair in claimed if pair[0].room != 0], -(-(n - len(picks)) // len(claimed)))
        still = []
        for queue, flow in claimed:
            if len(picks) == n:
                return
            key = queue.follow(flow) if queue.room != 0 else None
            if key is not None:
                picks.append((queue, flow, key))
                still.append((queue, flow))
        claimed = still
