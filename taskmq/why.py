"""Why does this task not run now? The rule that holds it back, in words, and what would change it."""

from __future__ import annotations

from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import PartitionInfo, QueueStats, Store


def why(store: Store, task: TaskInfo) -> str:
    """One sentence about a task as it stands: how it ended, who runs it, or what it waits for."""
    if task.state.terminal:
        return _ended(task)
    if task.state is TaskState.RUNNING:
        asked = ", and is asked to stop" if task.cancel_requested else ""
        return f"it runs on worker {task.worker} until its lease ends at {_time(task.lease_until)}{asked}"
    if task.state is TaskState.SCHEDULED:
        return f"it is not due before {_time(task.available_at)}"
    (queue,) = store.stats([task.queue])
    partition = next(iter(store.partitions(task.queue, [task.partition])), None) if task.partition else None
    if queue.config.paused:
        return f"its queue {task.queue} is paused: taskmq queue resume {task.queue}"
    held = _held_back(task, partition)
    if held is not None:
        return held
    if task.state is TaskState.RETRYING:
        return f"its attempt {task.attempt} failed; it is tried again at {_time(task.available_at)}"
    return _waiting(store, task, queue)


def _ended(task: TaskInfo) -> str:
    because = f": {task.reason or ''} {task.error or ''}".rstrip() if task.reason or task.error else ""
    return f"it ended {task.state} at {_time(task.finished_at)}{because}"


def _held_back(task: TaskInfo, partition: PartitionInfo | None) -> str | None:
    """What its partition does to it."""
    if partition is None:
        return None
    what = f"its partition {partition.code}"
    if partition.paused:
        return f"{what} is paused by an operator: taskmq partition resume {task.queue} '{partition.code}'"
    if partition.held_by is not None:
        return f"{what} is held by the dead task {partition.held_by}: release it, skip it or replay that task"
    if partition.blocked_until is not None:
        return f"{what} is blocked until {_time(partition.blocked_until)} by a retry or defer"
    if partition.ordered and partition.running:
        return f"{what} is ordered and held by worker {partition.worker}, with {partition.running} of its tasks"
    return None


def _waiting(store: Store, task: TaskInfo, queue: QueueStats) -> str:
    """Nothing holds it; it waits for its turn, or for a worker."""
    if queue.config.max_running is not None and queue.running >= queue.config.max_running:
        return f"its queue {task.queue} runs as many tasks as it may (max_running={queue.config.max_running})"
    workers = [worker for worker in store.workers() if task.queue in worker.queues]
    if not workers:
        return f"no worker subscribes to its queue {task.queue}"
    if all(worker.handlers and task.handler not in worker.handlers for worker in workers):
        names = ", ".join(worker.id for worker in workers)
        return f"no worker of its queue knows the handler {task.handler}: {names}"
    above = sum(count for priority, count in queue.by_priority.items() if priority > task.priority)
    same = queue.by_priority.get(task.priority, 0)
    return (
        f"it waits for its turn: {above} ready tasks of queue {task.queue} are more urgent, {same - 1} others have its "
        f"priority, and {len(workers)} workers subscribe"
    )


def _time(us: int | None) -> str:
    when = TaskInfo.when(us)
    return "?" if when is None else when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
