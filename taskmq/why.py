"""Why does this task not run now? The rule that holds it back, in words, and what would change it."""

from __future__ import annotations

from taskmq.queue import Rate
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import PartitionInfo, QueueStats, Store, WorkerInfo


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
    return (
        _stopped(task, queue, partition)
        or _retried(task)
        or _limited(store, task)
        or _crowded(task, queue, partition)
        or _waiting(task, queue, partition, [worker for worker in store.workers() if task.queue in worker.queues])
    )


def _ended(task: TaskInfo) -> str:
    because = f": {task.reason or ''} {task.error or ''}".rstrip() if task.reason or task.error else ""
    return f"it ended {task.state} at {_time(task.finished_at)}{because}"


def _stopped(task: TaskInfo, queue: QueueStats, partition: PartitionInfo | None) -> str | None:
    """Its queue or its partition does not go on at all."""
    if queue.config.paused:
        return f"its queue {task.queue} is paused: taskmq queue resume {task.queue}"
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


def _retried(task: TaskInfo) -> str | None:
    if task.state is TaskState.RETRYING:
        if not task.attempts or task.attempts[-1].attempt != task.attempt or task.attempts[-1].epoch != task.epoch:
            return f"its handler asked to be run later; it is next at {_time(task.available_at)}"
        return f"its attempt {task.attempt} failed; it is tried again at {_time(task.available_at)}"
    return None


def _limited(store: Store, task: TaskInfo) -> str | None:
    """As many tasks as may run at once have its limit's key."""
    if task.limit is None:
        return None
    key, most = task.limit.key, task.limit.n
    info = next(iter(store.limits([key])), None)
    if info is not None and info.running >= most:
        return (
            f"its limit {key} is reached: {info.running} tasks with this key run and it lets {most} run at once; "
            f"{info.parked} are parked until one of them ends"
        )
    if task.parked:
        return f"it was parked because its limit {key} (n={most}) was reached; a slot is free, it returns in its turn"
    return None


def _crowded(task: TaskInfo, queue: QueueStats, partition: PartitionInfo | None) -> str | None:
    """As many tasks as may run at once, or start in a while, have its partition or its queue."""
    if partition is not None and partition.max_running is not None and partition.running >= partition.max_running:
        return (
            f"its partition {partition.code} runs {partition.running} tasks, as many as it may "
            f"(max_running={partition.max_running})"
        )
    config = queue.config
    if config.max_running is not None and queue.running >= config.max_running:
        return (
            f"its queue {task.queue} runs {queue.running} tasks, as many as it may (max_running={config.max_running})"
        )
    if isinstance(config.rate, Rate) and queue.next_start_at is not None:
        return (
            f"its queue {task.queue} has started as many tasks as its rate allows, {config.rate.count} in "
            f"{config.rate.per:g} s; the next one may start at {_time(queue.next_start_at)}"
        )
    return None


def _waiting(task: TaskInfo, queue: QueueStats, partition: PartitionInfo | None, workers: list[WorkerInfo]) -> str:
    """Nothing holds it; it waits for its turn, or for a worker."""
    if not workers:
        return f"no worker subscribes to its queue {task.queue}"
    if all(worker.handlers and task.handler not in worker.handlers for worker in workers):
        names = ", ".join(worker.id for worker in workers)
        return f"no worker of its queue knows the handler {task.handler}: {names}"
    above = sum(count for priority, count in queue.by_priority.items() if priority > task.priority)
    same = queue.by_priority.get(task.priority, 0)
    busy, slots = sum(worker.running for worker in workers), sum(worker.concurrency for worker in workers)
    return (
        f"it waits for its turn: {above} ready tasks of queue {task.queue} are more urgent, {max(0, same - 1)} others "
        f"have its priority, and {len(workers)} workers subscribe, with {busy} of their {slots} slots busy"
        + _beside(partition)
    )


def _beside(partition: PartitionInfo | None) -> str:
    """Those of its own partition, of which one may be what it waits for."""
    if partition is None or partition.waiting < 2:
        return ""
    others = f"; {partition.waiting - 1} others of its partition {partition.code} wait, too"
    return f"{others}, and go one after another: ask why of the first of them" if partition.ordered else others


def _time(us: int | None) -> str:
    when = TaskInfo.when(us)
    return "?" if when is None else when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
