"""Heads that were read in the exchange of the lock, for the claim that is about to ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from taskmq.policy.order import Key
from taskmq.transport.sql.rows import FlowRow, QueueRow


class Ahead:
    """The first ``look`` keys of some lines and the first ``look`` flows of some queues, until something changes them.

    Answers None for what it does not know.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A line has changed."""
        self._look = 0
        self._lines: dict[int, list[Key]] = {}
        self._flows: dict[int, list[tuple[Any, ...]]] = {}

    def forget_flows(self) -> None:
        """A flow has changed."""
        self._flows = {}

    def take(
        self,
        queues: Sequence[QueueRow],
        lines: Sequence[tuple[Any, ...]],
        flows: Sequence[tuple[Any, ...]],
        look: int,
    ) -> None:
        """What was read of these queues: (lane, key …) and (queue_id, flow …).

        Of a queue that another session made while they were read, there may be lines without the queue: left out.
        """
        self._look = look
        self._lines = {-row[0]: [] for queue in queues for row in msgspec.json.decode(queue.handlers)}
        for lane, s1, s2, seq, handler in lines:
            if lane in self._lines:
                self._lines[lane].append((s1, s2, seq, handler))
        self._flows = {queue.queue_id: [] for queue in queues}
        for queue_id, *flow in flows:
            if queue_id in self._flows:
                self._flows[queue_id].append(tuple(flow))

    def line(self, lane: int, offset: int, limit: int) -> list[Key] | None:
        """Keys of a line, if they are known."""
        keys = self._lines.get(lane)
        return None if keys is None or not self._knows(len(keys), offset, limit) else keys[offset : offset + limit]

    def flows_in_turn(self, queue_id: int, offset: int, limit: int) -> list[FlowRow] | None:
        """Flows of a queue, if they are known; new objects each time."""
        flows = self._flows.get(queue_id)
        if flows is None or not self._knows(len(flows), offset, limit):
            return None
        return [FlowRow(*row) for row in flows[offset : offset + limit]]

    def _knows(self, known: int, offset: int, limit: int) -> bool:
        return known < self._look or offset + limit <= known
