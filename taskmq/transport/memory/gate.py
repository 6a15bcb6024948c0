"""What a claim on the memory store asks about each head: can it run it, and has its limit a slot."""

from __future__ import annotations

from taskmq.policy.limits import Parking
from taskmq.policy.order import Key
from taskmq.transport.base import Reserve
from taskmq.transport.memory.lines import Spec
from taskmq.transport.memory.records import QueueRecord


class MemoryGate:
    """The gate of one queue in one claim."""

    def __init__(self, queue: QueueRecord, claim: Reserve, parking: Parking) -> None:
        self._queue = queue
        self._pairs = None if claim.handlers is None else set(claim.handlers)
        self._keys = claim.keys
        self.restricted = self._pairs is not None or not claim.keys
        """Whether it takes less than everything."""
        self.may_park = parking.may_park

    def runs(self, spec: Spec) -> bool:
        """Whether the claim can run tasks of this spec."""
        known = self._pairs is None or (spec.handler, spec.version) in self._pairs
        return known and (self._keys or not spec.keyed)

    def hides(self, key: Key) -> bool:
        """Whether this claim cannot run the task."""
        return not self.runs(self._queue.tasks[key[2]].spec)

    def full(self, key: Key) -> bool:
        """Whether the task's limit has no slot left."""
        limit = self._queue.tasks[key[2]].limit
        return limit is not None and self._queue.limits.free(limit) <= 0

    def start(self, key: Key) -> None:
        """The task takes a slot of its limit."""
        limit = self._queue.tasks[key[2]].limit
        if limit is not None:
            self._queue.limits.start(limit)
