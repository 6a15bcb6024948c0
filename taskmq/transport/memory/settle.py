"""How deliveries end in the memory store: by a settle, or because their lease does."""

from __future__ import annotations

from collections.abc import Iterable

from taskmq.message import Delivery
from taskmq.outcome import Ack, Dead, Defer, Retry, Yield
from taskmq.policy.lease import DIED, overriding_end, reason_of_death
from taskmq.state import Attempt, TaskState
from taskmq.transport.attempts import append_attempt
from taskmq.transport.base import Extend, Renewed, Settle, Settlement
from taskmq.transport.memory.inspect import MemoryInspect
from taskmq.transport.memory.records import FlowRecord, QueueRecord, TaskRecord


class MemorySettle(MemoryInspect):
    """Settle, extend and reap."""

    def settle(self, params: Settle) -> list[bool]:
        """End deliveries, one after another."""
        with self._lock:
            now = self._now()
            for item in params.items:
                self._promote(self._queue(item.delivery.queue), now)
            results = []
            for item in params.items:
                task = self._held(item.delivery)
                if task is None:
                    results.append(False)
                    continue
                results.append(self._settle(task, item, now))
            for item in params.items:
                self._queue(item.delivery.queue).look_for_missed()
            self._work.notify_all()
            return results

    def _held(self, delivery: Delivery) -> TaskRecord | None:
        """The task, while this delivery is still the one that holds it."""
        task = self._tasks.get(delivery.id)
        return task if task and task.place == task.RUNNING and task.epoch == delivery.epoch else None

    def _settle(self, task: TaskRecord, item: Settlement, now: int) -> bool:
        queue, flow, outcome = task.queue, task.flow, item.outcome
        assert flow is not None
        head = flow.running[0] == task.key() if flow.ordered else True
        if not head and not isinstance(outcome, Yield):
            return False  # a follower before its head is as stale as an old epoch
        if item.started_ago is not None:
            task.started_at = now - item.started_ago
        if isinstance(outcome, (Retry, Dead, Ack)):
            task.attempts += 1
        if isinstance(outcome, (Retry, Dead)):
            append_attempt(task.attempt_log, self._failed_attempt(task, outcome, now))
        held = (
            isinstance(outcome, Dead)
            and flow.ordered
            and queue.config.on_dead == "hold"
            and not self._doomed(task, now)
        )
        if held or isinstance(outcome, (Retry, Defer, Yield)):
            for follower in queue.runs_behind(task):
                self._hand_back(follower, now)
        self._release(task)
        if isinstance(outcome, Ack):
            task.result = outcome.result
            self._finish(task, TaskState.SUCCEEDED, now)
        elif doom := self._doomed(task, now):
            self._finish(task, doom, now)
        elif isinstance(outcome, Dead):
            if held:
                flow.held_by = task.id
            self._die(task, outcome.reason, outcome.error, outcome.traceback, now)
        elif isinstance(outcome, Yield):
            queue.stand(task, flow)
        else:
            self._put_off(task, flow, outcome.delay, outcome.partition, now)
        queue.place(flow)
        return True

    @staticmethod
    def _failed_attempt(task: TaskRecord, outcome: Retry | Dead, now: int) -> Attempt:
        return Attempt(
            attempt=task.attempts,
            epoch=task.epoch,
            ended_at=now,
            outcome="retry" if isinstance(outcome, Retry) else "dead",
            error=outcome.error,
            traceback=outcome.traceback,
            worker=task.worker,
            started_at=task.started_at,
        )

    @staticmethod
    def _doomed(task: TaskRecord, now: int) -> TaskState | None:
        return overriding_end(cancel_requested=task.cancel_requested, deadline_at=task.deadline_at, now=now)

    def _put_off(self, task: TaskRecord, flow: FlowRecord, delay: int, whole_partition: bool, now: int) -> None:
        """Retry or defer: an ordered partition waits in place; otherwise the task waits aside."""
        queue = task.queue
        due = now + delay
        task.retry_at = due if delay else None
        task.expires_at = task.deadline_at  # it was started in time
        if not flow.ordered:
            task.available_at = due
        if flow.ordered or (whole_partition and flow is not queue.plain):
            queue.stand(task, flow)
            if delay:
                queue.block(flow, due, task.seq)
        elif delay:
            flow.aside += 1
            queue.wait_until(task, due)
        else:
            queue.enter(task)

    def _hand_back(self, task: TaskRecord, now: int) -> None:
        """Back in its place, unblamed."""
        flow = task.flow
        assert flow is not None
        self._release(task)
        if doom := self._doomed(task, now):
            self._finish(task, doom, now)
        else:
            task.queue.stand(task, flow)

    def _release(self, task: TaskRecord) -> None:
        """Out of the worker's hands."""
        queue, flow = task.queue, task.flow
        assert flow is not None
        queue.leases.remove((task.lease_until, task.seq))
        flow.running.remove(task.key())
        queue.running -= 1
        if task.limit is not None:
            self._limits.release(task.limit)

    def _die(self, task: TaskRecord, reason: str, error: str | None, traceback: str | None, now: int) -> None:
        task.reason, task.error, task.traceback = reason, error, traceback
        self._finish(task, TaskState.FAILED, now)

    # ── leases ──

    def _lease(self, task: TaskRecord, until: int) -> None:
        task.lease_until = until
        task.queue.leases.add((until, task.seq))

    def extend(self, params: Extend) -> list[Renewed]:
        """Renew leases and mark started tasks."""
        with self._lock:
            now = self._now()
            answers = []
            for item in params.items:
                task = self._held(item.delivery)
                if task is None:
                    answers.append(Renewed(None))
                    continue
                if item.started and not task.started:
                    task.started, task.started_at = True, now
                task.queue.leases.remove((task.lease_until, task.seq))
                self._lease(task, now + item.delivery.lease)
                if item.progress is not None:
                    task.progress = item.progress
                answers.append(Renewed(task.lease_until, task.cancel_requested))
            return answers

    def _reap(self, queue: QueueRecord, now: int, limit: int) -> int:
        """Take back tasks whose lease is over; leases that end together are judged together."""
        ended: list[TaskRecord] = []
        for until, seq in queue.leases:
            if until > now or (len(ended) >= limit and until != ended[-1].lease_until):
                break
            ended.append(queue.tasks[seq])
        blamed = self._blamed(queue, ended)
        for task in ended:
            if task.place == task.RUNNING:
                self._lose(task, blamed, now)
        return len(ended)

    @staticmethod
    def _blamed(queue: QueueRecord, ended: Iterable[TaskRecord]) -> set[int]:
        """Who was started: named by a heartbeat, or the first unsettled of its batch (in this queue) or of its run."""
        firsts: dict[tuple[int, str | None], TaskRecord] = {}
        for task in sorted((queue.tasks[seq] for _, seq in queue.leases), key=lambda task: task.position):
            firsts.setdefault((task.batch, task.code if task.run else None), task)
        return {task.seq for task in ended if task.started} | {task.seq for task in firsts.values()}

    def _lose(self, task: TaskRecord, blamed: set[int], now: int) -> None:
        """A lost task, and everything behind it in its run: what ended is counted, the rest goes back unblamed."""
        queue, flow = task.queue, task.flow
        assert flow is not None
        run = [queue.tasks[key[2]] for key in flow.running] if flow.ordered else [task]
        first = next(position for position, mate in enumerate(run) if mate.lease_until <= now)
        for mate in reversed(run[first:]):
            if mate.lease_until > now:
                self._hand_back(mate, now)
        for mate in run[first:]:
            if mate.place == mate.RUNNING:
                self._count_expiry(mate, mate.seq in blamed, now)
        queue.place(flow)

    def _count_expiry(self, task: TaskRecord, blamed: bool, now: int) -> None:
        """An ended lease: back in line, or ended for good."""
        queue, flow = task.queue, task.flow
        assert flow is not None
        self._release(task)
        task.expiries += 1
        if blamed:
            task.blamed += 1
            task.attempts += 1
            task.expires_at = task.deadline_at
            append_attempt(
                task.attempt_log,
                Attempt(
                    attempt=task.attempts,
                    epoch=task.epoch,
                    ended_at=now,
                    outcome="lease expired",
                    worker=task.worker,
                    started_at=task.started_at,
                ),
            )
        reason = reason_of_death(
            attempts=task.attempts,
            max_attempts=task.message.max_attempts,
            blamed=task.blamed,
            expiries=task.expiries,
        )
        if doom := self._doomed(task, now):
            self._finish(task, doom, now)
        elif reason is not None:
            if flow.ordered and queue.config.on_dead == "hold":
                flow.held_by = task.id
            self._die(task, reason, DIED, None, now)
        else:
            queue.stand(task, flow)
