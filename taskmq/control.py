"""What operators do with many tasks at once: lists, queues, dead letters. Each is a thin face of ``Inspect``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from taskmq.errors import InvalidArgument
from taskmq.names import check_code, check_id, check_key, check_name, short
from taskmq.options import refuse_unknown
from taskmq.queue import QueueConfig
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import Find, PartitionInfo, QueueStats, Store

PAGE = 100
"""How many tasks one call acts on, and how many the first page has."""
LONGEST_PAGE = 1000
"""Pages grow so far: a store may have to look at everything for each of them."""
_DEAD = TaskState.FAILED
WAITING = (TaskState.SCHEDULED, TaskState.QUEUED, TaskState.RETRYING)


class TaskQuery:
    """The tasks that fit some conditions, newest first. Iterating reads page by page, as far as it is iterated."""

    def __init__(self, store: Store, find: Find) -> None:
        self._store = store
        self._find = find

    def __iter__(self) -> Iterator[TaskInfo]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[list[TaskInfo]]:
        """The same in pages."""
        find: Find | None = self._find
        while find is not None:
            found = self._store.find(find)
            yield found.tasks
            more = min(2 * find.limit, LONGEST_PAGE)
            find = None if found.cursor is None else dataclasses.replace(find, after=found.cursor, limit=more)

    def cancel_all(self) -> int:
        """Cancel those that have not ended (running ones are asked to stop); returns how many were."""
        cancelled = 0
        for ids in self._ids(lambda task: not task.state.terminal):
            cancelled += sum(state is not None for state in self._store.cancel(ids))
        return cancelled

    def retry_all(self, queue: str | None = None) -> int:
        """Queue those that ended FAILED again, each with a new budget, in ``queue`` or their own; returns how many."""
        target = _target(queue)
        # Pages go by id, so a task that dies again meanwhile is not met a second time.
        return sum(sum(self._store.replay(ids, target)) for ids in self._ids(lambda task: task.state is _DEAD))

    def purge_all(self) -> int:
        """Delete the records of those that have ended; returns how many there were."""
        return sum(self._store.purge(ids) for ids in self._ids(lambda task: task.state.terminal))

    def _ids(self, wanted: Callable[[TaskInfo], bool]) -> Iterator[list[str]]:
        for page in self.pages():
            ids = [task.id for task in page if wanted(task)]
            yield from (ids[at : at + PAGE] for at in range(0, len(ids), PAGE))


class QueueControl:
    """One queue of the store."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name

    def pause(self) -> None:
        """Let nothing more be claimed from it. Running tasks go on."""
        self._store.pause_queue(self.name, True)

    def resume(self) -> None:
        """Let it be claimed from again."""
        self._store.pause_queue(self.name, False)

    def stats(self) -> QueueStats:
        """How it stands: settings, counts, ages."""
        found = self._store.stats([self.name])
        return found[0] if found else QueueStats(name=self.name, config=QueueConfig())

    def configure(self, **changes: Any) -> QueueConfig:
        """Change fields of its QueueConfig and return the new one; raises InvalidArgument for unknown or wrong ones."""
        refuse_unknown("queue setting", changes, (field.name for field in dataclasses.fields(QueueConfig)))
        return self._store.change_queue(self.name, changes)

    def purge(self) -> int:
        """Cancel everything that waits in it; running tasks go on. Returns how many tasks were cancelled."""
        return task_query(self._store, queue=self.name, state=WAITING).cancel_all()

    def delete(self) -> None:
        """Forget the queue, its history and keys; raises InvalidArgument while it has unfinished tasks."""
        if not self._store.delete_queue(self.name):
            raise InvalidArgument(f"queue {self.name!r} has unfinished tasks: purge it, and let its running ones end")


class PartitionControl:
    """One partition of a queue. ``release`` and ``skip_head`` are for ordered ones."""

    def __init__(self, store: Store, queue: str, code: str) -> None:
        self._store = store
        self.queue = queue
        self.code = code

    def info(self) -> PartitionInfo | None:
        """How it stands; None when it has nothing in line, running, blocked or stopped."""
        return next(iter(self._store.partitions(self.queue, [self.code])), None)

    def pause(self) -> None:
        """Let nothing more of it be claimed, now or later. Running tasks go on."""
        self._store.pause_partition(self.queue, self.code, True)

    def resume(self) -> None:
        """Let it be claimed from again."""
        self._store.pause_partition(self.queue, self.code, False)

    def release(self) -> bool:
        """Try the dead head of a held partition again, in its place and with a new budget; False if none is held."""
        return self._store.release_partition(self.queue, self.code)

    def skip_head(self) -> bool:
        """Go on without the head: a held one stays dead, a waiting one becomes dead. False if there is none free."""
        return self._store.skip_head(self.queue, self.code)

    def purge(self) -> int:
        """Cancel everything that waits in it, and lift a hold; returns how many tasks were cancelled."""
        waiting = task_query(self._store, queue=self.queue, partition=self.code, state=WAITING)
        cancelled = waiting.cancel_all()
        info = self.info()
        if info is not None and info.held_by is not None:
            self.skip_head()
        return cancelled


class DeadLetters:
    """The tasks of one queue that ended FAILED."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._all = task_query(store, queue=queue, state=TaskState.FAILED)

    def list(self, limit: int = PAGE) -> list[TaskInfo]:
        """The newest ``limit`` of them."""
        return [task for task, _ in zip(self._all, range(limit), strict=False)]

    def replay(self, *task_ids: str, queue: str | None = None) -> Replayed:
        """Queue these again with a new budget of attempts, in ``queue`` or their own; False for what is not dead."""
        return self._store.replay([check_id(task_id) for task_id in task_ids], _target(queue))

    def replay_all(self, queue: str | None = None) -> int:
        """Queue all of them again with a new budget; returns how many there were."""
        return self._all.retry_all(queue)

    def purge(self) -> int:
        """Delete them; returns how many there were."""
        return self._all.purge_all()


Replayed = list[bool]


def task_query(
    store: Store,
    *,
    queue: str | None = None,
    state: TaskState | str | Iterable[TaskState | str] = (),
    handler: str | None = None,
    partition: str | None = None,
    tag: str | None = None,
) -> TaskQuery:
    """The tasks for which every given condition holds; raises InvalidArgument for an unknown state."""
    states = tuple(state) if isinstance(state, Iterable) and not isinstance(state, str) else (state,)
    return TaskQuery(
        store,
        Find(
            queue=None if queue is None else check_name("queue", queue),
            states=tuple(_state(one) for one in states),
            handler=None if handler is None else check_name("handler", handler),
            partition=None if partition is None else check_code(partition),
            tag=None if tag is None else check_key("tag", tag),
            limit=PAGE,
        ),
    )


def _target(queue: str | None) -> str | None:
    return None if queue is None else check_name("queue", queue)


def _state(value: Any) -> TaskState:
    try:
        return TaskState(value)
    except ValueError:
        raise InvalidArgument(f"state {short(value)} is none of {', '.join(TaskState)}") from None
