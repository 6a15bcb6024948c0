"""How an idle worker learns of work in a SQLite file.

SQLite has no notification. In this process a publish rings a bell, which costs nothing. For other processes the waiter
looks every few milliseconds at ``PRAGMA data_version``, which changes with every commit of another connection and is a
read of shared memory (3 µs); only when it has changed is it worth asking whether a task can be claimed, and only a
yes ends the wait. Workers' own settles change the version, too, so without that question idle workers would wake each
other.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

import msgspec

from taskmq.transport.sql.sqlite.rare import counted

POLL = 0.007
"""Seconds between two looks. Half of it is the median delay; the looks cost about 0.6 % of a core."""

Reader = Callable[[], AbstractContextManager[sqlite3.Connection]]

CLAIMABLE = f"""
SELECT 1 FROM taskmq_queues q WHERE namespace=:namespace AND name IN (SELECT value FROM json_each(:names))
  AND paused=0 AND (max_running IS NULL OR {counted("2")}<max_running)
  AND ((open_at IS NULL OR open_at<=:now) AND (
      EXISTS (SELECT 1 FROM taskmq_handlers h JOIN taskmq_tasks t ON t.lane=-h.handler_id AND t.state=1
        WHERE h.queue_id=q.queue_id)
      OR EXISTS (SELECT 1 FROM taskmq_flows f WHERE f.queue_id=q.queue_id AND elig=1)
      OR EXISTS (SELECT 1 FROM taskmq_parked p WHERE p.queue_id=q.queue_id AND owed>0))
    OR EXISTS (SELECT 1 FROM taskmq_tasks t WHERE t.queue_id=q.queue_id AND state=0 AND due_at<=:now)
    OR EXISTS (SELECT 1 FROM taskmq_tasks t WHERE t.queue_id=q.queue_id AND state=2 AND due_at<=:now)
    OR EXISTS (SELECT 1 FROM taskmq_flows f WHERE f.queue_id=q.queue_id AND blocked_until IS NOT NULL
      AND blocked_until<=:now))
LIMIT 1
"""


UNFINISHED = "SELECT 1 FROM taskmq_tasks WHERE id=?"
NEVER = 1 << 62
FOUND = -1.0
FIRST_DUE = f"""
SELECT coalesce(min(min(
  coalesce((SELECT min(due_at) FROM taskmq_tasks t WHERE t.queue_id=q.queue_id AND state=0), {NEVER}),
  coalesce((SELECT min(due_at) FROM taskmq_tasks t WHERE t.queue_id=q.queue_id AND state=2), {NEVER}),
  coalesce((SELECT min(blocked_until) FROM taskmq_flows f WHERE f.queue_id=q.queue_id AND blocked_until IS NOT NULL),
    {NEVER}), CASE WHEN open_at>:now THEN open_at ELSE {NEVER} END)), {NEVER})
FROM taskmq_queues q WHERE namespace=:namespace AND name IN (SELECT value FROM json_each(:names))
"""


class Wakeup:
    """Blocks until something can be claimed."""

    def __init__(self) -> None:
        self._bells: set[threading.Lock] = set()
        """Of each waiter, a lock that is held until somebody rings."""
        self._wakes = 0

    def signal(self) -> None:
        """Say that this process has changed something that may make work claimable."""
        for bell in tuple(self._bells):
            with suppress(RuntimeError):  # it has been rung already
                bell.release()

    def wake(self) -> None:
        """Make every wait return."""
        self._wakes += 1
        self.signal()

    def wait(
        self,
        reader: Reader,
        gate: AbstractContextManager[None],
        namespace: str,
        queues: Sequence[str],
        timeout: float,
        now: Callable[[], int],
    ) -> bool:
        """True as soon as something can be claimed, False when the time is over or ``wake`` was called."""
        parameters = {"namespace": namespace, "names": msgspec.json.encode(list(queues)).decode()}

        def look(connection: sqlite3.Connection) -> float:
            if connection.execute(CLAIMABLE, {**parameters, "now": now()}).fetchone():
                return FOUND
            due: int = connection.execute(FIRST_DUE, {**parameters, "now": now()}).fetchone()[0]
            return due

        return self._until(look, reader, gate, timeout, now)

    def watch(self, reader: Reader, gate: AbstractContextManager[None], task_id: str, timeout: float) -> bool:
        """True as soon as the task has ended or is gone, False when the time is over or ``wake`` was called."""

        def look(connection: sqlite3.Connection) -> float:
            return NEVER if connection.execute(UNFINISHED, (task_id,)).fetchone() else FOUND

        return self._until(look, reader, gate, timeout, lambda: 0)

    def _until(
        self,
        look: Callable[[sqlite3.Connection], float],
        reader: Reader,
        gate: AbstractContextManager[None],
        timeout: float,
        now: Callable[[], int],
    ) -> bool:
        """Look until it is FOUND: at first, after every commit, and when the time has come that the last look gave.

        ``gate`` is entered for each look, and not while it sleeps.
        """
        end = time.monotonic() + timeout
        wakes = self._wakes
        bell = threading.Lock()
        bell.acquire()
        self._bells.add(bell)  # before the first look, so that no signal is missed
        try:
            with reader() as connection:
                version, rung, due = -1, True, 0.0
                while True:
                    with gate:
                        seen = _data_version(connection)
                        if rung or seen != version or now() >= due:
                            version, due = seen, look(connection)
                            if due == FOUND:
                                return True
                    left = end - time.monotonic()
                    if self._wakes != wakes or left <= 0:
                        return False
                    rung = bell.acquire(timeout=min(POLL, left))
        finally:
            self._bells.discard(bell)


def _data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
