"""The state of the memory store and the moves that both of its faces make: always under its lock."""

from __future__ import annotations

import threading
from itertools import count

from sortedcontainers import SortedList

from taskmq.clock import Clock, SystemClock
from taskmq.errors import TransportError
from taskmq.state import TaskState
from taskmq.transport.base import WorkerInfo
from taskmq.transport.memory.limits import Limits
from taskmq.transport.memory.records import BATCH, QueueRecord, TaskRecord


class MemoryCore:
    """Queues, tasks, keys and workers of one store."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._wakes = 0
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._queues: dict[str, QueueRecord] = {}
        self._limits = Limits()
        self._tasks: dict[str, TaskRecord] = {}
        self._ended: SortedList[tuple[int, str]] = SortedList()
        """(end of retention, task id)."""
        self._keys: dict[tuple[str, str], tuple[str, str, int | None]] = {}
        self._locks: dict[str, tuple[str, int]] = {}
        self._workers: dict[str, tuple[WorkerInfo, int]] = {}
        self._seq = count(1)
        self._batch = count(1)

    def _now(self) -> int:
        if self._closed:
            raise TransportError("this store is closed")
        return self._clock.now()

    def _queue(self, name: str) -> QueueRecord:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = QueueRecord(name, self._limits)
        return queue

    def _promote(self, queue: QueueRecord, now: int) -> int:
        return queue.promote(now, BATCH)

    def _finish(self, task: TaskRecord, state: TaskState, now: int) -> None:
        task.place, task.state, task.finished_at = task.ENDED, state, now
        del task.queue.tasks[task.seq]
        task.delete_at = now + task.retention(state)
        if task.message.key_until == "finished" and task.message.key_ttl is None:
            self._free_key(task)
        self._ended.add((task.delete_at, task.id))
        if task.delete_at <= now:
            self._delete(task)
        self._work.notify_all()  # somebody may watch it

    def _delete(self, task: TaskRecord) -> None:
        del self._tasks[task.id]
        self._ended.remove((task.delete_at or 0, task.id))
        self._free_key(task, delete=True)

    def _free_key(self, task: TaskRecord, delete: bool = False) -> None:
        """Free its key; a key with a life of its own outlives the record."""
        at = (task.queue.name, task.message.key or "")
        stored = self._keys.get(at)
        if stored is not None and stored[0] == task.id and not (delete and task.message.key_ttl is not None):
            del self._keys[at]
