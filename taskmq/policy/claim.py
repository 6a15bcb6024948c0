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

Rejected: *each worker claims optimistically and repairs* – measured at 13 picks lost for each won, and 4 turns of
unfairness where 1 is allowed; *random pick by weight* – exceeds one turn soon; *band counters in the store* – state
that must be repaired after each crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from taskmq.names import MAX_PRIORITY
from taskmq.policy.order import Key
from taskmq.policy.turns import after_turn

CATCH_UP = 10.0
"""Most turns that a queue may be behind the leader of its band and still catch up (defaults.md)."""

UNPARTITIONED = ""
"""The code of the flow of all unpartitioned tasks; it sorts before every real code."""


class Flow:
    """One flow during one claim.

    ``keys`` are the first keys of its line that were read; ``read(k)`` appends up to k more and is None at the end.
    After ``choose``: ``taken`` keys were picked, and ``tag`` is what must be stored.
    """

    __slots__ = ("code", "keys", "ordered", "read", "ref", "tag", "taken", "weight")

    def __init__(
        self,
        code: str,
        *,
        keys: list[Key],
        read: Callable[[int], list[Key]] | None,
        tag: int = 0,
        weight: int = 1,
        ordered: bool = False,
        ref: Any = None,
    ) -> None:
        self.code = code
        self.keys = keys
        self.read = read
        self.tag = tag
        self.weight = weight
        self.ordered = ordered
        self.ref = ref
        self.taken = 0

    def head(self) -> Key | None:
        """The next key that was not taken, read if need be."""
        if self.taken == len(self.keys) and self.read is not None:
            more = self.read(len(self.keys) + 1)
            self.keys += more
            if not more:
                self.read = None
        return self.keys[self.taken] if self.taken < len(self.keys) else None


_HeapKey = tuple[int, int, int, str]


class Queue:
    """One candidate queue during one claim.

    ``flows``   eligible flows in turn order, as far as they were read; ``read(k)`` gives up to k more, or [] at the end
    ``turns``   whether virtual time counts: a strict queue that knows partitions
    ``room``    how many more of its tasks may run, None for no limit
    After ``choose``: ``served`` and ``v`` are what must be stored; ``taken`` tasks were picked.
    """

    __slots__ = (
        "_heap",
        "_last",
        "_last_read",
        "_unread",
        "aging",
        "flows",
        "name",
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
        ref: Any = None,
    ) -> None:
        self.name = name
        self.weight = weight
        self.served = served
        self.v = v
        self.aging = aging
        self.turns = turns
        self.room = room
        self.ref = ref
        self.taken = 0
        self.flows = flows
        self.plain = plain
        self.read = read
        self._unread = 0
        self._last_read: _HeapKey | None = None
        self._heap: list[tuple[_HeapKey, Flow]] = []
        self._last: Flow | None = None
        if plain is not None and plain.head() is not None:
            self._heap.append((self._key(plain), plain))
        self._admit()

    def _key(self, flow: Flow) -> _HeapKey:
        rank, second, third = flow.keys[flow.taken]
        return (rank, second, third, flow.code) if self.aging else (rank, flow.tag, 0, flow.code)

    def _admit(self) -> None:
        """Put flows that were read in line."""
        for flow in self.flows[self._unread :]:
            flow.head()
            key = self._key(flow)
            heappush(self._heap, (key, flow))
            self._last_read = key
        self._unread = len(self.flows)

    def best(self) -> Flow | None:
        """The flow whose turn it is, or None when nothing is eligible."""
        flow = self._last
        if flow is not None:
            self._last = None
            if flow.head() is not None:
                heappush(self._heap, (self._key(flow), flow))
        while self.read is not None and (
            not self._heap or self._last_read is None or self._heap[0][0] > self._last_read
        ):
            more = self.read(max(1, len(self.flows)))
            if not more:
                self.read = None
            self.flows += more
            self._admit()
        return self._heap[0][1] if self._heap else None

    def band(self) -> int:
        """The priority with which the queue competes; only while ``best`` is not None."""
        return 0 if self.aging else MAX_PRIORITY - self._heap[0][0][0]

    def take(self) -> tuple[Flow, Key]:
        """Take the best flow's head and its turn; only while ``best`` is not None."""
        flow = heappop(self._heap)[1]
        key = flow.keys[flow.taken]
        flow.taken += 1
        self._count()
        if self.turns:
            self.v, flow.tag = after_turn(self.v, flow.tag, flow.weight)
        if not flow.ordered:
            self._last = flow
        return flow, key

    def take_line(self, n: int) -> list[Pick]:
        """Take n tasks of a queue that stands alone and knows no partition: its line is the answer."""
        plain = self.plain
        if plain is None:
            return []
        n = n if self.room is None else min(n, self.room)
        while len(plain.keys) < n and plain.read is not None:
            plain.taken = len(plain.keys)
            plain.head()
        keys = plain.keys[:n]
        plain.taken = self.taken = len(keys)
        self.served += len(keys)
        return [(self, plain, key) for key in keys]

    def follow(self, flow: Flow) -> Key | None:
        """Take a follower of a claimed ordered partition: no turn, no tag."""
        key = flow.head()
        if key is not None:
            flow.taken += 1
            self._count()
            self.served += 1
        return key

    def _count(self) -> None:
        self.taken += 1
        if self.room is not None:
            self.room -= 1


Pick = tuple[Queue, Flow, Key]
PrefetchFollowers = Callable[[Sequence[tuple[Queue, Flow]], int], None]


def choose(queues: Sequence[Queue], n: int, prefetch: PrefetchFollowers | None = None) -> list[Pick]:
    """The next ``n`` tasks of these queues, in order; updates the queues' and flows' state to what must be stored.

    ``prefetch(flows, k)`` may read k more keys of each flow in one exchange before followers are taken.
    """
    if len(queues) == 1 and not queues[0].turns and queues[0].read is None and not queues[0].flows:
        return queues[0].take_line(n)
    picks: list[Pick] = []
    claimed: list[tuple[Queue, Flow]] = []
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
            return picks
        if queue.room == 0 or queue.best() is None:
            candidates.remove(queue)
    if claimed:
        _take_followers(picks, claimed, n, prefetch)
    return picks


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
