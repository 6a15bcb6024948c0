"""The lines of parked tasks, as far as their statements read the same on every engine. The rule: policy/limits.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.sql.codes import PARKED
from taskmq.transport.sql.rows import ParkedRow, TaskRow

DELETE_LIMITS = tuple(
    f"DELETE FROM taskmq_{table} WHERE namespace=:namespace AND limit_key IN @keys" for table in ("limits", "parked")
)
INSERT_LIMIT = "INSERT INTO taskmq_limits(namespace, limit_key, running) VALUES (:namespace, :key, :running)"
INSERT_PARKED = """
INSERT INTO taskmq_parked(namespace, limit_key, handler_id, n, parked, owed, v, j)
VALUES (:namespace, :limit_key, :handler_id, :n, :parked, :owed, :v, :j)
"""
OWING = """
SELECT h.handler_id, limit_key, n FROM taskmq_handlers h JOIN taskmq_parked p ON p.handler_id=h.handler_id AND owed>0
WHERE h.queue_id=:queue ORDER BY limit_key, n, h.name, h.version
"""
_OF_LINE = f"handler_id=:handler AND limit_key=:key AND limit_n=:n AND state={PARKED}"
NEXT_TURN = f"SELECT lane, seq, rtag FROM taskmq_tasks WHERE {_OF_LINE} ORDER BY s1, s2, rtag, seq LIMIT 1"
FIRST_OF_LANE = f"SELECT seq, rtag FROM taskmq_tasks WHERE lane=:lane AND {_OF_LINE} ORDER BY s1, s2, seq LIMIT 1"
LAST_TURN = f"SELECT max(rtag) FROM taskmq_tasks WHERE lane=:lane AND {_OF_LINE}"
FIRST_PARKED = f"SELECT s1, s2, seq FROM taskmq_tasks WHERE lane=:lane AND state={PARKED} ORDER BY s1, s2, seq LIMIT 1"


class ParkedLines:
    """A session's parked tasks. An engine brings what raises NotImplementedError here."""

    namespace: str

    def _ask(self, statement: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        raise NotImplementedError

    def _tell(self, statement: str, /, **parameters: Any) -> None:
        """Run a statement without an answer."""
        raise NotImplementedError

    def tasks_by_seq(self, seqs: Sequence[int], *, lock: bool = False) -> list[TaskRow]:
        """Tasks."""
        raise NotImplementedError

    def write_turns(self, rows: Sequence[tuple[int, int]]) -> None:
        """Tags of parked tasks."""
        raise NotImplementedError

    def write_limits(self, running: Mapping[str, int], lines: Sequence[ParkedRow]) -> None:
        """Replace what runs and what is parked."""
        for statement in DELETE_LIMITS:
            self._tell(statement, namespace=self.namespace, keys=list(running))
        waiting = {line.limit_key for line in lines}
        for key, count in running.items():
            if count or key in waiting:
                self._tell(INSERT_LIMIT, namespace=self.namespace, key=key, running=count)
        for line in lines:
            self._tell(INSERT_PARKED, namespace=self.namespace, **line._asdict())

    def owing(self, queue_id: int) -> list[tuple[int, Limit]]:
        """Limits that owe a return."""
        return [(handler_id, Limit(key, n)) for handler_id, key, n in self._ask(OWING, queue=queue_id)]

    def next_parked(self, handler_id: int, limit: Limit) -> TaskRow:
        """Whose turn it is: its partition's first task gets the tag of the turn, the other one that task's."""
        line = {"handler": handler_id, "key": limit.key, "n": limit.n}
        lane, seq, tag = self._ask(NEXT_TURN, **line)[0]
        first, other = self._ask(FIRST_OF_LANE, lane=lane, **line)[0]
        if first != seq:
            self.write_turns([(first, tag), (seq, other)])
        return self.tasks_by_seq([first])[0]

    def last_turn(self, lane: int, handler_id: int, limit: Limit) -> int | None:
        """A partition's greatest tag in a line."""
        last: int | None = self._ask(LAST_TURN, lane=lane, handler=handler_id, key=limit.key, n=limit.n)[0][0]
        return last

    def first_parked(self, lane: int) -> Key | None:
        """The first parked task of an ordered partition."""
        rows = self._ask(FIRST_PARKED, lane=lane)
        return tuple(rows[0]) if rows else None
