"""Faults in the limits by key and in partitions: slots, parking, missed slots, max_running."""

from __future__ import annotations

from typing import Any

import pytest
from sortedcontainers import SortedList

from taskmq.message import Message
from taskmq.policy import claim
from taskmq.policy.limits import LimitedKey, ParkedLine, Parking
from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.memory.limits import Limits, Line, Waiting
from taskmq.transport.memory.records import FlowRecord, QueueRecord, TaskRecord
from tests.conformance.mutants import mutant, wrap


class Forgetful(SortedList[Any]):
    """Takes everything and has nothing."""

    def add(self, value: Any) -> None:
        """Forget it."""

    def remove(self, value: Any) -> None:
        """There is nothing to remove."""


# ── limits by key ──


@mutant("limits")
def limits_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Limits, "free", lambda limits, limit: limit.n)


@mutant("limits")
def limit_n_of_the_task_ignored(patch: pytest.MonkeyPatch) -> None:
    """The largest n that the key has seen goes for all."""
    most: dict[tuple[int, str], int] = {}

    def free(original: Any, limits: Limits, limit: Limit) -> int:
        at = (id(limits), limit.key)
        most[at] = max(most.get(at, 0), limit.n)
        return int(original(limits, Limit(limit.key, most[at])))

    wrap(patch, Limits, "free", free)


@mutant("limits")
def limit_counted_by_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "limits", property(_own_limits), raising=False)
    patch.setattr(QueueRecord, "__setattr__", _without_limits)
    patch.setattr(MemoryTransport, "_release", _release_own)


def _own_limits(queue: QueueRecord) -> Limits:
    own: Limits = queue.__dict__.setdefault("own_limits", Limits())
    return own


def _without_limits(queue: QueueRecord, name: str, value: Any) -> None:
    if name != "limits":
        object.__setattr__(queue, name, value)


def _release_own(store: Any, task: TaskRecord) -> None:
    assert task.flow is not None
    task.queue.leases.remove((task.lease_until, task.seq))
    task.flow.running.remove(task.key())
    task.queue.running -= 1
    if task.limit is not None:
        task.queue.limits.release(task.limit)


def _lost_without_release(original: Any, store: Any, task: TaskRecord, *rest: Any) -> None:
    limit, task.limit = task.limit, None
    try:
        original(store, task, *rest)
    finally:
        task.limit = limit


@mutant("limits")
def limit_slot_kept_by_a_lost_lease(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, MemoryTransport, "_count_expiry", _lost_without_release)


@mutant("limits")
def limit_slot_kept_by_the_rest_of_a_run(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, MemoryTransport, "_hand_back", _lost_without_release)


@mutant("limits")
def limit_of_a_follower_ignored(patch: pytest.MonkeyPatch) -> None:
    def follow(original: Any, queue: claim.Queue, flow: claim.Flow) -> Key | None:
        key: Key | None
        gate, queue.gate = queue.gate, None
        try:
            key = original(queue, flow)
        finally:
            queue.gate = gate
        if key is not None and gate is not None:
            gate.start(key)
        return key

    wrap(patch, claim.Queue, "follow", follow)


@mutant("limits")
def limits_of_ended_keys_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LimitedKey, "empty", lambda key: False)


# ── parking ──


@mutant("parking")
def parked_return_at_the_end_of_the_line(patch: pytest.MonkeyPatch) -> None:
    def stand(original: Any, queue: QueueRecord, task: TaskRecord, flow: FlowRecord) -> None:
        if was_parked.pop(task.id, False):
            del queue.tasks[task.seq]
            task.seq += 10**6
            queue.tasks[task.seq] = task
        original(queue, task, flow)

    def unpark(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        original(queue, task)
        was_parked[task.id] = True

    was_parked: dict[str, bool] = {}
    wrap(patch, QueueRecord, "unpark", unpark)
    wrap(patch, QueueRecord, "stand", stand)


@mutant("parking")
def parked_return_last_in_first_out(patch: pytest.MonkeyPatch) -> None:
    def first(original: Any, waiting: Waiting) -> Key:
        *_, seq, _ = waiting._order[-1]
        return waiting._tags[seq][0]

    wrap(patch, Waiting, "first", first)


@mutant("parking")
def parked_return_first_in_first_out(patch: pytest.MonkeyPatch) -> None:
    """Whoever was parked first returns first, whatever partition it is of."""
    patch.setattr(ParkedLine, "tag", lambda line, last, weight: 0)


@mutant("parking")
def parked_return_without_weights(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, ParkedLine, "tag", lambda original, line, last, weight: original(line, last, 1))


@mutant("parking")
def parked_partitions_join_at_zero(patch: pytest.MonkeyPatch) -> None:
    """A partition that comes late to a full key has its whole past to catch up."""
    wrap(
        patch,
        ParkedLine,
        "tag",
        lambda original, line, last, weight: 0 if last is None else original(line, last, weight),
    )


@mutant("parking")
def parked_return_by_tag_within_a_partition(patch: pytest.MonkeyPatch) -> None:
    """The turn belongs to the task that was parked first, not to its partition's first task."""

    def first(original: Any, waiting: Waiting) -> Key:
        *_, seq, _ = waiting._order[0]
        return waiting._tags[seq][0]

    wrap(patch, Waiting, "first", first)


@mutant("parking")
def parked_never_return(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "return_parked", lambda queue, limit: 0)


@mutant("parking")
def parked_return_all_at_once(patch: pytest.MonkeyPatch) -> None:
    def release(original: Any, key: Any) -> None:
        original(key)
        for line in key.lines.values():
            line.owed = line.parked

    def owed(key: Any, queue: str, n: int) -> int:
        line = key.lines.get((queue, n))
        return min(line.owed, line.parked) if line is not None else 0

    wrap(patch, LimitedKey, "release", release)
    patch.setattr(LimitedKey, "owed", owed)


@mutant("parking")
def parked_return_to_one_queue_only(patch: pytest.MonkeyPatch) -> None:
    def release(key: Any) -> None:
        key.running -= 1
        for queue, n in list(key.lines)[:1]:
            key.missed(queue, n)

    patch.setattr(LimitedKey, "release", release)


@mutant("parking")
def parking_takes_a_turn_between_queues(patch: pytest.MonkeyPatch) -> None:
    def park(original: Any, queue: claim.Queue, flow: claim.Flow) -> None:
        queue.served += 1
        original(queue, flow)

    wrap(patch, claim.Queue, "_park", park)


@mutant("parking")
def parking_takes_a_turn_between_partitions(patch: pytest.MonkeyPatch) -> None:
    def park(original: Any, queue: claim.Queue, flow: claim.Flow) -> None:
        if queue.turns:
            queue.v, flow.tag = claim.after_turn(queue.v, flow.tag, flow.weight)
        original(queue, flow)

    wrap(patch, claim.Queue, "_park", park)


@mutant("parking")
def parking_consumes_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def park(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        task.attempts += 1
        original(queue, task)

    wrap(patch, QueueRecord, "park", park)


@mutant("parking")
def parking_is_unbounded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Parking, "may_park", lambda parking: True)


@mutant("parking")
def parking_stops_without_a_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Parking, "over", False)


@mutant("parking")
def full_keys_fill_the_line(patch: pytest.MonkeyPatch) -> None:
    def enter(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        free, queue.limits.free = queue.limits.free, lambda limit: limit.n  # type: ignore[method-assign]
        try:
            original(queue, task)
        finally:
            queue.limits.free = free  # type: ignore[method-assign]

    wrap(patch, QueueRecord, "enter", enter)


@mutant("parking")
def full_keys_park_behind_ordered_heads(patch: pytest.MonkeyPatch) -> None:
    def enter(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        flow = queue.flow(task.code)
        if task.limit is not None and flow.ordered and queue.limits.free(task.limit) <= 0:
            task.flow = flow
            queue.park(task)
        else:
            original(queue, task)

    wrap(patch, QueueRecord, "enter", enter)


@mutant("parking")
def ordered_partition_does_not_wait_for_its_parked_head(patch: pytest.MonkeyPatch) -> None:
    def park(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        original(queue, task)
        if task.flow is not None:
            task.flow.parked = Forgetful()

    wrap(patch, QueueRecord, "park", park)


@mutant("parking")
def parallel_partition_waits_for_its_parked_task(patch: pytest.MonkeyPatch) -> None:
    def park(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        original(queue, task)
        if task.flow is not None and task.flow is not queue.plain and not task.flow.ordered:
            task.flow.parked.add(task.key())

    def unpark(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        original(queue, task)
        if task.flow is not None and task.flow is not queue.plain and not task.flow.ordered:
            task.flow.parked.remove(task.key())

    wrap(patch, QueueRecord, "park", park)
    wrap(patch, QueueRecord, "unpark", unpark)


@mutant("parking")
def parked_tasks_do_not_expire(patch: pytest.MonkeyPatch) -> None:
    def expire(original: Any, store: Any, queue: QueueRecord, now: int, limit: int) -> int:
        kept = [at for at in queue.expiring if queue.tasks[at[1]].place == TaskRecord.PARKED]
        for at in kept:
            queue.expiring.remove(at)
        try:
            return int(original(store, queue, now, limit))
        finally:
            queue.expiring.update(kept)

    wrap(patch, MemoryTransport, "_expire", expire)


# ── missed slots ──


@mutant("missed")
def missed_slot_owed_to_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Limits, "missed", lambda limits, line: None)


@mutant("missed")
def slot_of_a_stopped_partition_owed_to_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "look_for_missed", lambda queue: queue._stopped.clear())


@mutant("missed")
def slot_of_an_ended_task_owed_to_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "drop", lambda queue, task: queue.leave(task))


@mutant("missed")
def slot_of_an_overtaken_head_owed_to_nobody(patch: pytest.MonkeyPatch) -> None:
    def enter(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        missed, queue.limits.missed = queue.limits.missed, lambda *limit: None  # type: ignore[method-assign]
        try:
            original(queue, task)
        finally:
            queue.limits.missed = missed  # type: ignore[method-assign]

    wrap(patch, QueueRecord, "enter", enter)


@mutant("missed")
def return_to_a_stopped_partition_counts(patch: pytest.MonkeyPatch) -> None:
    """A task that returns to a partition which cannot give it counts as the return that was owed."""

    def first_owed(original: Any, limits: Limits, line: Line) -> Key | None:
        key: Key | None = original(limits, line)
        if key is not None:
            limits._keys[line.key].returned(line.place, line.n)
        return key

    wrap(patch, Limits, "first_owed", first_owed)
    patch.setattr(Limits, "returned", lambda limits, line: None)


# ── partition limits ──


@mutant("partition_limits")
def partition_max_running_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlowRecord, "room", lambda flow: None)


@mutant("partition_limits")
def partition_max_running_set_by_the_first_task_only(patch: pytest.MonkeyPatch) -> None:
    def enter(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        most = queue.flow(task.code).max_running
        original(queue, task)
        if most is not None and task.flow is not None and task.flow is not queue.plain:
            task.flow.max_running = most
            queue.place(task.flow)

    wrap(patch, QueueRecord, "enter", enter)


@mutant("partition_limits")
def partition_max_running_lost_with_a_task_that_names_none(patch: pytest.MonkeyPatch) -> None:
    def enter(original: Any, queue: QueueRecord, task: TaskRecord) -> None:
        partition = task.message.partition
        if partition is not None and partition.max_running is None:
            queue.flow(task.code).max_running = None
        original(queue, task)

    wrap(patch, QueueRecord, "enter", enter)


@mutant("partition_limits")
def partition_max_running_set_before_the_task_is_due(patch: pytest.MonkeyPatch) -> None:
    def accept(original: Any, store: Any, message: Message, now: int) -> None:
        flow = store._queue(message.queue).flows.get(message.partition.code if message.partition else "")
        if flow is not None and message.partition is not None and message.partition.max_running is not None:
            flow.max_running = message.partition.max_running
            store._queue(message.queue).place(flow)
        original(store, message, now)

    wrap(patch, MemoryTransport, "_accept", accept)
