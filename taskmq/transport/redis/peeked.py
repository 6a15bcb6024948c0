"""Choosing between the queues of a cluster, which one script cannot see together.

Each queue says what a claim would take from it alone: the bands of the heads in their order, and whose followers would
come after them. What a queue gives first does not depend on how many are wanted, nor on other queues (limits and rates
are its own). So the one rule between queues (policy/claim.py) picks from these lists, and then each queue is told how
many heads and followers it gives. In one process's view that is exactly the claim of a single server. Between looking
and claiming others may come first: then a queue gives less, and there is another round.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmq.policy.claim import Flow, Queue, choose
from taskmq.policy.order import Key

_NO_KEY: Key = (0, 0, 0)
_ANY = Flow("", keys=[], read=None)


class Peeked(Queue):
    """What one queue would give.

    ``seen``   its service when it was looked at         ``parks``   some of its heads wait to be parked
    """

    __slots__ = ("_bands", "_followers", "_heads", "_next", "heads", "parks", "seen")

    def __init__(self, name: str, served: bytes, weight: int, bands: bytes, followers: bytes, *, parks: bool) -> None:
        """``bands``: a digit for each head; ``followers``: for each the position of its head and a comma."""
        super().__init__(name, flows=[], weight=weight, served=float(served))
        self._bands = bands
        self.seen = served.decode()
        self.parks = parks
        self.heads = 0
        """How many heads were chosen."""
        self._followers = [int(position) for position in followers.split(b",")[:-1]]
        self._heads: list[Flow] = []
        self._next = 0

    @property
    def followers(self) -> int:
        """How many followers were chosen."""
        return self._next

    def is_line(self) -> bool:
        """It has only what it was told."""
        return False

    def best(self) -> Flow | None:
        """A flow, if there is a next head; which one, ``take`` tells."""
        return None if len(self._heads) == len(self._bands) else _ANY

    def band(self) -> int:
        """The priority of the next head."""
        return self._bands[len(self._heads)] - 48

    def take(self) -> tuple[Flow, Key]:
        """Choose the next head."""
        position = len(self._heads) + 1
        flow = Flow(self.name, keys=[], read=None, ordered=position in self._followers, ref=position)
        self._heads.append(flow)
        self.heads += 1
        return flow, _NO_KEY

    def follow(self, flow: Flow) -> Key | None:
        """Choose this head's next follower, if it is whose turn it is."""
        if self._next == len(self._followers) or self._followers[self._next] != flow.ref:
            return None
        self._next += 1
        self.served += 1
        return _NO_KEY


def choose_from(queues: Sequence[Peeked], n: int) -> list[Peeked]:
    """Whose task comes next, n times."""
    picks: list[Peeked] = [queue for queue, _, _ in choose(queues, n)]  # type: ignore[misc]
    return picks


def plans(queues: Sequence[Peeked], picks: Sequence[Peeked], n: int) -> dict[str, str]:
    """What each queue that gives or parks something is told (lua/reserve.lua).

    A claim looks at every head once more after each pick, and parks what it must, but not after the last one.
    """
    heads = sum(queue.heads for queue in queues)
    last = picks[heads - 1] if heads == n > 0 else None
    return {
        queue.name: f"{queue.heads},{queue.followers},{int(queue is not last)},{queue.seen},{queue.served!r}"
        for queue in queues
        if queue.heads or queue.parks
    }
