"""The memory store as operators see it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from typing import Any

import msgspec

from taskmq import codec
from taskmq.queue import QueueConfig
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import Find, Finding, Found, LimitInfo, PartitionInfo, QueueStats, WorkerInfo
from taskmq.transport.memory.core import MemoryCore
from taskmq.transport.memory.records import FlowRecord, QueueRecord, TaskRecord


class MemoryInspect(MemoryCore):
    """``Inspect`` over the records of the memory store."""

    def get(self, task_ids: Sequence[str]) -> list[TaskInfo | None]:
        """The tasks of these ids."""
        with self._lock:
            now = self._now()
            tasks = [self._tasks.get(task_id) for task_id in task_ids]
            return [None if task is None else self._info(task, now) for task in tasks]

    def find(self, params: Find) -> Found:
        """One page of tasks, newest first."""
        with self._lock:
            now = self._now()
            matching = [
                task
                for task in self._tasks.values()
                if (params.queue is None or task.queue.name == params.queue)
                and (not params.states or task.visible_state(now) in params.states)
                and (params.handler is None or task.message.handler == params.handler)
                and (params.partition is None or task.code == params.partition)
                and (params.tag is None or params.tag in task.message.tags)
                and (params.after is None or task.id < params.after)
            ]
            page = nlargest(params.limit + 1, matching, key=lambda task: task.id)
            infos = [self._info(task, now) for task in page[: params.limit]]
            return Found(tasks=infos, cursor=infos[-1].id if len(page) > params.limit else None)

    def _info(self, task: TaskRecord, now: int) -> TaskInfo:
        message, envelope = task.message, codec.decode(task.message.body)
        running, ended = task.place == task.RUNNING, task.place == task.ENDED
        rank = task.available_at - message.priority * task.queue.aging_us
        return TaskInfo(
            id=task.id,
            queue=task.queue.name,
            handler=message.handler,
            state=task.visible_state(now),
            priority=message.priority,
            seq=task.seq,
            attempt=task.attempts + (running and task.started),
            max_attempts=message.max_attempts,
            epoch=task.epoch,
            version=message.version,
            partition=task.code or None,
            key=message.key,
            limit=task.limit,
            parked=task.place == task.PARKED,
            args=msgspec.json.decode(envelope.args),
            kwargs=msgspec.json.decode(envelope.kwargs),
            headers=envelope.headers,
            tags=list(message.tags),
            result=None if task.result is None else msgspec.json.decode(task.result),
            reason=task.reason,
            error=task.error or (task.attempt_log[-1].error if task.attempt_log else None),
            traceback=task.traceback or (task.attempt_log[-1].traceback if task.attempt_log else None),
            attempts=list(task.attempt_log),
            created_at=task.created_at,
            available_at=task.available_at if task.retry_at is None or ended else task.retry_at,
            dispatch_at=rank,
            started_at=task.started_at,
            finished_at=task.finished_at,
            lease_until=task.lease_until if running else None,
            delete_at=task.delete_at,
            worker=task.worker,
            cancel_requested=running and task.cancel_requested,
            replays=task.replays,
            progress=task.progress,
            started=not running or task.started,
        )

    def cancel(self, task_ids: Sequence[str]) -> list[TaskState | None]:
        """Cancel what waits, ask what runs to stop."""
        with self._lock:
            now = self._now()
            return [self._cancel(self._tasks.get(task_id), now) for task_id in task_ids]

    def _cancel(self, task: TaskRecord | None, now: int) -> TaskState | None:
        if task is None:
            return None
        if task.place != task.ENDED:
            self._promote(task.queue, now)
        if task.place == task.RUNNING:
            task.cancel_requested = True
        elif task.place != task.ENDED:
            task.queue.drop(task)
            self._finish(task, TaskState.CANCELLED, now)
            if task.flow is not None:
                task.queue.place(task.flow)
            task.queue.look_for_missed()
        return task.visible_state(now)

    def replay(self, task_ids: Sequence[str], queue: str | None = None) -> list[bool]:
        """Queue dead letters again with a new budget and a new place."""
        with self._lock:
            now = self._now()
            return [self._replay(self._tasks.get(task_id), queue, now) for task_id in task_ids]

    def _replay(self, task: TaskRecord | None, queue: str | None, now: int) -> bool:
        if task is None or task.state is not TaskState.FAILED:
            return False
        own = task.queue
        target = own if queue is None else self._queue(queue)
        self._promote(target, now)
        if target is not own:
            self._free_key(task, delete=True)
        if self._holds(task):
            self._lift_hold(task)
        task.queue = target
        self._revive(task, next(self._seq), now)
        self._take_key(task, now)
        own.look_for_missed()
        target.look_for_missed()
        self._work.notify_all()
        return True

    def _take_key(self, task: TaskRecord, now: int) -> None:
        """One key, one task: the revived one has its key again, unless another task has taken it meanwhile."""
        message = task.message
        if message.key is None or message.key_ttl is not None:
            return
        stored = self._keys.get((task.queue.name, message.key))
        if stored is None or (stored[2] is not None and stored[2] <= now):
            self._keys[task.queue.name, message.key] = (task.id, message.digest(), None)

    @staticmethod
    def _holds(task: TaskRecord) -> bool:
        """Whether its partition stopped because it is dead."""
        flow = task.queue.flows.get(task.code)
        return flow is not None and flow.held_by == task.id

    @staticmethod
    def _lift_hold(task: TaskRecord) -> None:
        flow = task.queue.flows[task.code]
        flow.held_by = None
        task.queue.place(flow)

    def _revive(self, task: TaskRecord, seq: int, available_at: int) -> None:
        """Out of the dead letters and into its line, with a new budget."""
        self._ended.remove((task.delete_at or 0, task.id))
        task.seq = seq
        task.state = task.reason = task.error = task.traceback = task.finished_at = task.delete_at = None
        task.flow = task.retry_at = task.started_at = task.expires_at = task.deadline_at = task.progress = None
        task.attempts = task.blamed = task.expiries = 0
        task.replays += 1
        task.available_at = available_at
        task.queue.tasks[seq] = task
        task.queue.enter(task)

    def purge(self, task_ids: Sequence[str]) -> int:
        """Delete ended tasks' records now."""
        with self._lock:
            now = self._now()
            ended = [t for t in map(self._tasks.get, dict.fromkeys(task_ids)) if t and t.place == t.ENDED]
            for task in ended:
                if self._holds(task):
                    self._promote(task.queue, now)
                    self._lift_hold(task)
                self._delete(task)
            for task in ended:
                task.queue.look_for_missed()
            self._work.notify_all()
            return len(ended)

    def stats(self, queues: Sequence[str] = ()) -> list[QueueStats]:
        """The named queues, or all."""
        with self._lock:
            now = self._now()
            names = sorted(queues or self._queues)
            return [self._stats(self._queues[name], now) for name in names if name in self._queues]

    def _stats(self, queue: QueueRecord, now: int) -> QueueStats:
        tasks = list(queue.tasks.values())
        states = Counter(task.visible_state(now) for task in tasks)
        ready = [task for task in tasks if task.visible_state(now) is TaskState.QUEUED]
        dead = sum(task.queue is queue and task.state is TaskState.FAILED for task in self._tasks.values())
        return QueueStats(
            name=queue.name,
            config=queue.settings(),
            scheduled=states[TaskState.SCHEDULED],
            ready=states[TaskState.QUEUED],
            running=states[TaskState.RUNNING],
            retrying=states[TaskState.RETRYING],
            dead=dead,
            by_priority=dict(sorted(Counter(task.message.priority for task in ready).items(), reverse=True)),
            by_handler=dict(sorted(Counter(task.message.handler for task in tasks).items())),
            partitions=len(queue.flows),
            oldest_ready_age=max((now - task.ready_at() for task in queue.next_in_turn()), default=None),
            served=queue.served,
            next_start_at=queue.next_start_at(now),
        )

    def partitions(self, queue: str, codes: Sequence[str] = (), *, stopped: bool = False) -> list[PartitionInfo]:
        """The live partitions of a queue, or those of these codes."""
        with self._lock:
            self._now()
            record = self._queues.get(queue)
            if record is None:
                return []
            flows = [record.flows[code] for code in sorted(codes or record.flows) if code in record.flows]
            return [self._partition(record, flow) for flow in flows if flow.stopped() or not stopped]

    @staticmethod
    def _partition(queue: QueueRecord, flow: FlowRecord) -> PartitionInfo:
        return PartitionInfo(
            queue=queue.name,
            code=flow.code,
            ordered=flow.ordered,
            weight=flow.weight,
            waiting=len(flow.line) + flow.aside,
            running=len(flow.running),
            max_running=flow.max_running,
            blocked_until=flow.blocked_until,
            paused=flow.paused,
            held_by=flow.held_by,
            worker=queue.tasks[flow.running[0][2]].worker if flow.ordered and flow.running else None,
        )

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task has ended or is gone."""
        deadline = time.monotonic() + timeout
        with self._work:
            while (task := self._tasks.get(task_id)) is not None and task.place != task.ENDED:
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    return False
                self._work.wait(left)
            return True

    def now(self) -> int:
        """The store's clock."""
        with self._lock:
            return self._now()

    def checkup(self) -> list[Finding]:
        """Nothing can be wrong with a dict."""
        return []

    def limits(self, keys: Sequence[str] = ()) -> list[LimitInfo]:
        """The concurrency limits that have tasks running or parked."""
        with self._lock:
            self._now()
            return self._limits.infos(keys)

    def workers(self) -> list[WorkerInfo]:
        """The live workers."""
        with self._lock:
            now = self._now()
            return [worker for worker, end in (self._workers[i] for i in sorted(self._workers)) if end > now]

    def change_queue(self, queue: str, changes: Mapping[str, Any]) -> QueueConfig:
        """Change some of a queue's settings."""
        with self._lock:
            self._now()
            record = self._queue(queue)
            record.configure(replace(record.settings(), **changes))
            self._work.notify_all()
            return record.settings()

    def pause_queue(self, queue: str, paused: bool) -> None:
        """Stop or resume claims from a queue."""
        with self._lock:
            self._now()
            self._queue(queue).paused = paused
            self._work.notify_all()

    def delete_queue(self, queue: str) -> bool:
        """Forget a queue that has no unfinished tasks."""
        with self._lock:
            self._now()
            record = self._queues.get(queue)
            if record is not None and record.tasks:
                return False
            for task in [task for task in self._tasks.values() if task.queue is record]:
                self._delete(task)
            for at in [at for at in self._keys if at[0] == queue]:
                del self._keys[at]
            self._queues.pop(queue, None)
            return True

    def pause_partition(self, queue: str, code: str, paused: bool) -> None:
        """Stop or resume claims from a partition."""
        with self._lock:
            record = self._queue(queue)
            self._promote(record, self._now())
            flow = record.flow(code)
            flow.paused = paused
            record.place(flow)
            record.look_for_missed()
            self._work.notify_all()

    def release_partition(self, queue: str, code: str) -> bool:
        """Try the dead head of a held partition again."""
        with self._lock:
            now = self._now()
            record, flow = self._stopped(queue, code, now)
            if flow is None or flow.held_by is None:
                return False
            task = self._tasks.get(flow.held_by)
            flow.held_by = None
            if task is not None:
                self._revive(task, task.seq, task.available_at)
                self._take_key(task, now)
            else:
                record.place(flow)
            record.look_for_missed()
            self._work.notify_all()
            return True

    def skip_head(self, queue: str, code: str) -> bool:
        """Let an ordered partition go on without its head."""
        with self._lock:
            now = self._now()
            record, flow = self._stopped(queue, code, now)
            heads = [] if flow is None else [key for key in (flow.head(), *flow.parked[:1]) if key is not None]
            if flow is None or flow.running or not (flow.held_by or heads):
                return False
            if flow.held_by is None:
                task = record.tasks[min(heads)[2]]
                record.drop(task)
                record.unblock(flow)
                task.reason, task.error = "skipped", "an operator skipped it"
                self._finish(task, TaskState.FAILED, now)
            flow.held_by = None
            record.place(flow)
            record.look_for_missed()
            self._work.notify_all()
            return True

    def _stopped(self, queue: str, code: str, now: int) -> tuple[QueueRecord, FlowRecord | None]:
        record = self._queue(queue)
        self._promote(record, now)
        return record, record.flows.get(code)

    def flush(self) -> None:
        """Delete everything."""
        with self._lock:
            self._now()
            self._reset()
            self._work.notify_all()
