"""What a claim on a SQL store asks about each head: can it run it, and has its limit a slot."""

from __future__ import annotations

from taskmq.policy.limits import Parking
from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.base import Reserve
from taskmq.transport.sql.book import Book


class SqlGate:
    """The gate of one queue in one claim.

    ``handlers``  the ids of the handlers it can run, None when that is every one the queue has seen
    ``pages``     keys that were read: the limits of all of them are looked up together
    """

    def __init__(self, book: Book, claim: Reserve, parking: Parking) -> None:
        self._book = book
        self._keyed = book.keyed() if book.row.limited else frozenset()
        self._limits: dict[int, Limit] = {}
        self.pages: list[list[Key]] = []
        self.may_park = parking.may_park
        self.handlers: frozenset[int] | None = None
        if claim.handlers is not None or not claim.keys:
            pairs = None if claim.handlers is None else set(claim.handlers)
            can = {
                number
                for (name, version, keyed), number in book.handlers.items()
                if (pairs is None or (name, version) in pairs) and (claim.keys or not keyed)
            }
            self.handlers = None if len(can) == len(book.handlers) else frozenset(can)

    def needed(self) -> bool:
        """Whether there is anything to ask."""
        return bool(self._keyed) or self.handlers is not None

    def lanes(self) -> list[int]:
        """The lines of unpartitioned tasks that the claim can run."""
        return self._book.lanes() if self.handlers is None else [-number for number in sorted(self.handlers)]

    def hides(self, key: Key) -> bool:
        """Whether this claim cannot run the task."""
        return self.handlers is not None and key[3] not in self.handlers

    def full(self, key: Key) -> bool:
        """Whether the task's limit has no slot left."""
        if key[3] not in self._keyed:
            return False
        limit = self._limit(key[2])
        return self._book.limits.look(limit).free(limit.n) <= 0

    def start(self, key: Key) -> None:
        """The task takes a slot of its limit."""
        if key[3] in self._keyed:
            self._book.limits.change(self._limit(key[2])).start()

    def limit(self, key: Key) -> Limit:
        """The limit of a task that was found full."""
        return self._limits[key[2]]

    def _limit(self, seq: int) -> Limit:
        if seq not in self._limits:
            unknown = {key[2] for page in self.pages for key in page if key[3] in self._keyed} - self._limits.keys()
            self._limits.update(self._book.session.limits_of(sorted({seq, *unknown})))
            self._book.limits.load(self._limits.values())
        return self._limits[seq]
