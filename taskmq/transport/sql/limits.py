"""Concurrency limits inside one transaction: loaded by key when asked for, written once. The rule: policy/limits.py.

The row of a key in ``taskmq_limits`` is its lock: two claims of different queues that share a key meet there.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskmq.policy.limits import LimitedKey, ParkedLine
from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.rows import ParkedRow, TaskRow


class LimitBook:
    """The keys that this transaction has touched."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._keys: dict[str, LimitedKey[int]] = {}
        self._dirty: set[str] = set()
        self._last: dict[tuple[int, int, Limit], int] = {}
        self._turns: list[tuple[int, int]] = []

    def load(self, limits: Iterable[Limit | None]) -> None:
        """Read the keys of these limits, as far as they were not read yet."""
        keys = sorted({limit.key for limit in limits if limit is not None} - self._keys.keys())
        if not keys:
            return
        running, lines = self._session.load_limits(keys)
        for key in keys:
            self._keys[key] = LimitedKey(running.get(key, 0))
        for row in lines:
            self._keys[row.limit_key].lines[row.handler_id, row.n] = ParkedLine(row.parked, row.owed, row.v, row.j)

    def look(self, limit: Limit) -> LimitedKey[int]:
        """The key of a limit, to be read."""
        if limit.key not in self._keys:
            self.load([limit])
        return self._keys[limit.key]

    def change(self, limit: Limit) -> LimitedKey[int]:
        """The key of a limit, to be changed."""
        self._dirty.add(limit.key)
        return self.look(limit)

    def park(self, limit: Limit, key: Key, lane: int, weight: int | None) -> None:
        """A task waits for a slot; ``weight`` of its partition, None where there are no turns (aging)."""
        _, _, seq, handler_id = key
        line = self.change(limit).park(handler_id, limit.n)
        tag = 0
        if weight is not None:
            at = (lane, handler_id, limit)
            last = self._last.get(at)
            if last is None:
                last = self._session.last_turn(*at)
            tag = self._last[at] = line.tag(last, weight)
        self._turns.append((seq, tag))

    def unpark(self, limit: Limit, task: TaskRow) -> None:
        """It waits for a slot no more."""
        self._last.pop((task.lane, task.handler_id, limit), None)
        self.change(limit).unpark(task.handler_id, limit.n, task.rtag or 0)

    def flush(self) -> None:
        """Write what changed."""
        self._session.write_turns(self._turns)
        self._turns = []
        if not self._dirty:
            return
        running = {key: self._keys[key].running for key in sorted(self._dirty)}
        lines = [
            ParkedRow(key, handler_id, n, line.parked, line.owed, line.v, line.j)
            for key in running
            for (handler_id, n), line in self._keys[key].lines.items()
        ]
        self._session.write_limits(running, lines)
        self._dirty.clear()
