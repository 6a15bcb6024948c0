"""The memory store: the model, verb by verb, under one lock.

It is the executable specification: every other store must give its answers. So it does one thing after another,
asks ``taskmq.policy`` for every rule, and has no cleverness. It is also a real store for tests and small scripts;
its sorted lists keep every verb O(log n).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice, takewhile
from urllib.parse import parse_qsl, urlsplit

from taskmq.clock import Clock
from taskmq.errors import ConfigError, IdempotencyConflict
from taskmq.message import Delivery, Message
from taskmq.policy import claim
from taskmq.policy.limits import Parking
from taskmq.queue import QueueConfig
from taskmq.state import TaskState
from taskmq.transport.base import (
    Capabilities,
    Maintain,
    Maintained,
    Publish,
    Receipt,
    Reserve,
    Reserved,
    Settle,
    Wait,
    WorkerInfo,
)
from taskmq.transport.memory.gate import MemoryGate
from taskmq.transport.memory.lines import Runs
from taskmq.transport.memory.records import BATCH, FlowRecord, QueueRecord, TaskRecord
from taskmq.transport.memory.settle import MemorySettle
from taskmq.transport.settings import check_room, config_drift


class MemoryTransport(MemorySettle):
    """A store in this process. ``clock`` overrides the wall clock in tests."""

    name = "memory"
    capabilities = Capabilities(durable=False, shared=False)
    limitations: Mapping[str, str] = {}

    # ── publish ──

    def publish(self, params: Publish) -> list[Receipt]:
        """Store the messages, all or none."""
        with self._lock:
            now = self._now()
            accepted, receipts = self._check_keys(params.messages, now)
            self._check_room(accepted)
            for message in params.messages:
                self._promote(self._queue(message.queue), now)
            for message in accepted:
                self._accept(message, now)
            for message in params.messages:
                self._queue(message.queue).look_for_missed()
            self._work.notify_all()
            return receipts

    def _check_keys(self, messages: Iterable[Message], now: int) -> tuple[list[Message], list[Receipt]]:
        """Which messages are new. Nothing is stored before the whole batch has passed."""
        accepted: list[Message] = []
        receipts: list[Receipt] = []
        in_batch: dict[tuple[str, str], tuple[str, str]] = {}
        ids: set[str] = set()
        for message in messages:
            holder = message.id if message.id in ids else self._holder(message, in_batch, now)
            if holder is None:
                ids.add(message.id)
                accepted.append(message)
                receipts.append(Receipt(message.id, duplicate=False))
                if message.key is not None:
                    in_batch[message.queue, message.key] = (message.id, message.digest())
            else:
                receipts.append(Receipt(holder, duplicate=True))
        return accepted, receipts

    def _check_room(self, messages: Iterable[Message]) -> None:
        """Raise QueueFull where a queue's waiting tasks would be more than its ``max_queued``."""
        for name, more in Counter(message.queue for message in messages).items():
            queue = self._queue(name)
            check_room(name, queue.config.max_queued, len(queue.tasks) - queue.running, more)

    def _holder(self, message: Message, in_batch: dict[tuple[str, str], tuple[str, str]], now: int) -> str | None:
        """The task that holds this message's key, if any; raises IdempotencyConflict when its content differs."""
        if message.id in self._tasks:
            return message.id
        if message.key is None:
            return None
        stored = self._keys.get((message.queue, message.key))
        if stored is not None and (stored[2] is None or stored[2] > now):
            task_id, digest = stored[:2]
        elif (message.queue, message.key) in in_batch:
            task_id, digest = in_batch[message.queue, message.key]
        else:
            return None
        if digest != message.digest():
            raise IdempotencyConflict(
                f"key {message.key!r} of queue {message.queue!r} is taken by task {task_id} with different content",
                key=message.key,
                task_id=task_id,
            )
        return task_id

    def _accept(self, message: Message, now: int) -> None:
        queue = self._queue(message.queue)
        task = TaskRecord(message, queue, next(self._seq), now)
        self._tasks[task.id] = queue.tasks[task.seq] = task
        if message.key is not None:
            expires = now + message.key_ttl if message.key_ttl is not None else None
            self._keys[message.queue, message.key] = (message.id, message.digest(), expires)
        if task.available_at > now:
            queue.wait_until(task, task.available_at)
        else:
            queue.enter(task)

    # ── reserve ──

    def reserve(self, params: Reserve) -> Reserved:
        """Claim the next tasks by the claim rule."""
        with self._lock:
            now = self._now()
            queues = [self._queue(name) for name in dict.fromkeys(params.queues)]
            more = crowded = False
            for queue in queues:
                more |= self._promote(queue, now) >= BATCH
                more |= self._reap(queue, now, BATCH) >= BATCH
                if crowded := self._expire(queue, now, BATCH) == BATCH:
                    break
            for queue in queues:
                queue.look_for_missed()
            if crowded:
                return Reserved(deliveries=[], more=True)
            for queue in queues:
                more |= queue.return_parked(BATCH) >= BATCH
            parking = Parking()
            candidates = [
                self._candidate(queue, MemoryGate(queue, params, parking), now) for queue in queues if not queue.paused
            ]
            picks = claim.choose(candidates, params.limit)
            deliveries = self._deliver(picks, params, now)
            for candidate in candidates:
                self._write_back(candidate, now)
                candidate.ref.look_for_missed()
            more |= parking.over
            next_due = self._next_due(queues, now) if len(deliveries) < params.limit else None
            return Reserved(deliveries=deliveries, more=more, next_due=next_due)

    def _candidate(self, queue: QueueRecord, gate: MemoryGate, now: int) -> claim.Queue:
        turns = queue.turns.walk(gate.runs)

        def read(k: int) -> list[claim.Flow]:
            codes = [turn[-1] for turn in islice(turns, k)]
            return [self._claim_flow(queue.flows[code], None) for code in codes]

        return claim.Queue(
            queue.name,
            flows=[],
            read=read,
            plain=self._claim_flow(queue.plain, gate.runs),
            weight=queue.config.weight,
            served=queue.served,
            v=queue.v,
            aging=bool(queue.aging_us),
            turns=bool(queue.flows) and not queue.aging_us,
            room=queue.room(now),
            gate=gate if queue.limited or gate.restricted else None,
            ref=queue,
        )

    @staticmethod
    def _claim_flow(flow: FlowRecord, runs: Runs | None) -> claim.Flow:
        line = flow.line.walk(runs)
        if flow.parked:  # nothing behind a parked task of an ordered partition may start
            line = takewhile(lambda key: key < flow.parked[0], line)
        return claim.Flow(
            flow.code,
            keys=[],
            read=lambda k: list(islice(line, k)),
            tag=flow.tag,
            weight=flow.weight,
            ordered=flow.ordered,
            room=flow.room(),
            ref=flow,
        )

    def _deliver(self, picks: list[claim.Pick], params: Reserve, now: int) -> list[Delivery]:
        batch = next(self._batch)
        deliveries = []
        for position, (candidate, flow, key) in enumerate(picks):
            queue: QueueRecord = candidate.ref
            task = queue.tasks[key[2]]
            lease = queue.config.lease_us or params.lease
            queue.leave(task)
            flow.ref.running.add(key)
            queue.running += 1
            task.progress = None
            task.place = task.RUNNING
            task.epoch += 1
            task.batch, task.position, task.run = batch, position, flow.ordered and flow.taken > 1
            task.started = False
            task.worker = params.worker
            self._lease(task, now + lease)
            deliveries.append(self._delivery(task, lease))
        return deliveries

    @staticmethod
    def _delivery(task: TaskRecord, lease: int) -> Delivery:
        message = task.message
        return Delivery(
            id=task.id,
            queue=task.queue.name,
            handler=message.handler,
            body=message.body,
            priority=message.priority,
            attempt=task.attempts + 1,
            max_attempts=message.max_attempts,
            epoch=task.epoch,
            lease_until=task.lease_until,
            lease=lease,
            partition=task.code or None,
            aging=bool(task.queue.aging_us),
            expires_at=task.expires_at,
            deadline_at=task.deadline_at,
            created_at=task.created_at,
            available_at=task.available_at,
            version=message.version,
            limit_key=None if task.limit is None else task.limit.key,
        )

    @staticmethod
    def _write_back(candidate: claim.Queue, now: int) -> None:
        """Store what the claim left: service, virtual time, and the standing of the flows that gave or parked tasks."""
        queue: QueueRecord = candidate.ref
        queue.served, queue.v = candidate.served, candidate.v
        queue.count_starts(candidate.taken, now)
        for _, key in candidate.parked:
            task = queue.tasks[key[2]]
            queue.leave(task)
            queue.park(task)
        plain = candidate.plain
        for view in candidate.flows if plain is None else [plain, *candidate.flows]:
            if view.position:
                view.ref.tag = view.tag
                queue.place(view.ref)

    # ── both ──

    def settle_and_reserve(self, settle: Settle, reserve: Reserve) -> tuple[list[bool], Reserved]:
        """Both, under one lock."""
        with self._lock:
            return self.settle(settle), self.reserve(reserve)

    # ── housekeeping ──

    def _expire(self, queue: QueueRecord, now: int, limit: int) -> int:
        """End waiting tasks that were not started in time; they take no turn."""
        done = 0
        while queue.expiring and queue.expiring[0][0] <= now and done < limit:
            task = queue.tasks[queue.expiring[0][1]]
            queue.drop(task)
            self._finish(task, TaskState.EXPIRED, now)
            if task.flow is not None:
                queue.place(task.flow)
            done += 1
        return done

    def maintain(self, params: Maintain) -> Maintained:
        """One bounded round over all queues."""
        limit = params.limit or BATCH
        with self._lock:
            now = self._now()
            promoted = reaped = deleted = 0
            more = False
            for queue in self._queues.values():
                done = (queue.promote(now, limit), self._reap(queue, now, limit), self._expire(queue, now, limit))
                queue.look_for_missed()
                promoted, reaped, more = promoted + done[0], reaped + done[1], more or max(done) >= limit
            while self._ended and self._ended[0][0] <= now and deleted < limit:
                self._delete(self._tasks[self._ended[0][1]])
                deleted += 1
            for at in [at for at, (_, _, end) in self._keys.items() if end is not None and end <= now][:limit]:
                del self._keys[at]
            if promoted or reaped:
                self._work.notify_all()
            return Maintained(promoted=promoted, reaped=reaped, deleted=deleted, more=more or deleted >= limit)

    def _next_due(self, queues: Iterable[QueueRecord], now: int) -> int | None:
        """When something falls due, or a rate lets the next task start."""
        known = list(queues)
        times: list[int | None] = [line[0][0] for queue in known for line in (queue.due, queue.leases) if line]
        times += [queue.next_start_at(now) for queue in known]
        return min((time for time in times if time is not None), default=None)

    # ── waiting ──

    def wait(self, params: Wait) -> bool:
        """Block until a task of these queues can be claimed."""
        deadline = time.monotonic() + params.timeout
        with self._work:
            wakes = self._wakes
            while not self._has_work(params.queues):
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    return False
                self._work.wait(min(left, self._time_to_due(params.queues)))
                if self._wakes != wakes:
                    return False
            return True

    def _time_to_due(self, names: Iterable[str]) -> float:
        """Seconds until something of these queues falls due, by the clock; at least one millisecond."""
        now = self._now()
        due = self._next_due((self._queues[name] for name in names if name in self._queues), now)
        return math.inf if due is None else max(0.001, (due - now) / 1e6)

    def _has_work(self, names: Iterable[str]) -> bool:
        now = self._now()
        for queue in (self._queues[name] for name in names if name in self._queues):
            due = any(line and line[0][0] <= now for line in (queue.due, queue.leases))
            work = queue.plain.line or queue.turns or self._limits.owing(queue.name)
            if due or (work and not queue.paused and queue.room(now) != 0):
                return True
        return False

    def wake(self) -> None:
        """Make every blocked ``wait`` return now."""
        with self._work:
            self._wakes += 1
            self._work.notify_all()

    # ── named leases, workers, settings ──

    def lock(self, name: str, owner: str, ttl: int) -> bool:
        """Take or renew a named lease."""
        with self._lock:
            now = self._now()
            held = self._locks.get(name)
            if held is not None and held[0] != owner and held[1] > now:
                return False
            self._locks[name] = (owner, now + ttl)
            return True

    def unlock(self, name: str, owner: str) -> None:
        """Give a named lease back."""
        with self._lock:
            self._now()
            if self._locks.get(name, ("", 0))[0] == owner:
                del self._locks[name]

    def heartbeat(self, worker: WorkerInfo, ttl: int) -> None:
        """Write the worker's row."""
        with self._lock:
            now = self._now()
            self._workers[worker.id] = (replace(worker, seen_at=now), now + ttl)

    def forget(self, worker_id: str) -> None:
        """Remove a worker's row."""
        with self._lock:
            self._now()
            self._workers.pop(worker_id, None)

    def configure_queues(self, queues: Mapping[str, QueueConfig], overwrite: bool = False) -> dict[str, list[str]]:
        """Seed queues that were never configured; returns drift."""
        drift: dict[str, list[str]] = {}
        with self._lock:
            self._now()
            for name, config in queues.items():
                queue = self._queue(name)
                if overwrite or not queue.configured:
                    queue.configure(config)
                elif differs := config_drift(config, queue.config, queue.paused):
                    drift[name] = differs
            self._work.notify_all()
        return drift

    def close(self) -> None:
        """Forget nothing, but answer no more: the data live as long as this object."""
        with self._work:
            self._closed = True
            self._work.notify_all()


def open_url(url: str, *, namespace: str = "default", clock: Clock | None = None) -> MemoryTransport:
    """``memory://``: a new, empty store for every call."""
    parts = urlsplit(url)
    if parts.netloc or parts.path.strip("/") or parse_qsl(parts.query):
        raise ConfigError(f"{url!r}: a memory store has no name and no options; write memory://")
    return MemoryTransport(clock)
