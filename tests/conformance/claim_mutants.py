"""Faults in the choice of who is next: order, delays, fairness, gates, partitions, runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskmq.outcome import Ack
from taskmq.policy import claim, turns
from taskmq.transport.base import Settlement
from taskmq.transport.memory import MemoryTransport, records
from taskmq.transport.memory.records import FlowRecord, QueueRecord, TaskRecord
from tests.conformance.mutants import mutant, wrap

# ── order ──


@mutant("order")
def priority_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records, "sort_key", lambda aging, priority, at, seq: (0, 0, seq))


@mutant("order")
def last_in_first_out(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, records, "sort_key", lambda key, aging, priority, at, seq: (9 - priority, -seq, seq))


@mutant("order")
def aging_ignores_priority(patch: pytest.MonkeyPatch) -> None:
    wrap(
        patch, records, "sort_key", lambda key, aging, priority, at, seq: key(aging, 0 if aging else priority, at, seq)
    )


@mutant("order", "partitions")
def retry_goes_to_the_tail(patch: pytest.MonkeyPatch) -> None:
    def put_off(original: Any, store: Any, task: TaskRecord, *rest: Any) -> None:
        del task.queue.tasks[task.seq]
        task.seq = next(store._seq)
        task.queue.tasks[task.seq] = task
        original(store, task, *rest)

    wrap(patch, MemoryTransport, "_put_off", put_off)


@mutant("order")
def aging_retry_keeps_its_time(patch: pytest.MonkeyPatch) -> None:
    def put_off(original: Any, store: Any, task: TaskRecord, flow: FlowRecord, *rest: Any) -> None:
        before = task.available_at
        original(store, task, flow, *rest)
        if not flow.ordered and task.place == task.WAITING:
            flow.line.remove(task.key(), task.spec)
            task.available_at = before
            flow.line.add(task.key(), task.spec)

    wrap(patch, MemoryTransport, "_put_off", put_off)


@mutant("delays")
def due_tasks_wait_for_a_promoter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_promote", lambda store, queue, now: 0)


@mutant("delays")
def delays_ignored(patch: pytest.MonkeyPatch) -> None:
    def accept(original: Any, store: Any, message: Any, now: int) -> None:
        original(store, message, now + (message.run_after.us if message.run_after else 0))

    wrap(patch, MemoryTransport, "_accept", accept)


# ── fairness ──


@mutant("fairness")
def served_not_counted(patch: pytest.MonkeyPatch) -> None:
    original = MemoryTransport._write_back

    def write_back(candidate: claim.Queue, now: int) -> None:
        candidate.served = candidate.ref.served
        original(candidate, now)

    patch.setattr(MemoryTransport, "_write_back", staticmethod(write_back))


@mutant("fairness")
def no_clamp_for_late_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "CATCH_UP", 1e12)


@mutant("fairness")
def clamp_not_written_back(patch: pytest.MonkeyPatch) -> None:
    def next_queue(original: Any, candidates: Any) -> claim.Queue:
        before = {queue.name: queue.served for queue in candidates}
        chosen: claim.Queue = original(candidates)
        chosen.served = before[chosen.name] + 1
        return chosen

    wrap(patch, claim, "_next_queue", next_queue)


def _candidate(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    def candidate(original: Any, store: Any, queue: QueueRecord, *rest: Any) -> claim.Queue:
        view: claim.Queue = original(store, queue, *rest)
        for name, value in changes.items():
            setattr(view, name, value(queue))
        return view

    wrap(patch, MemoryTransport, "_candidate", candidate)


@mutant("fairness")
def queue_weights_ignored(patch: pytest.MonkeyPatch) -> None:
    _candidate(patch, weight=lambda queue: 1)


@mutant("fairness")
def aging_queue_competes_with_its_priority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim.Queue, "band", lambda queue: 9)


@mutant("gates")
def max_running_counts_nobody(patch: pytest.MonkeyPatch) -> None:
    _candidate(patch, room=lambda queue: queue.config.max_running)


@mutant("gates")
def pause_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "pause_queue", lambda store, queue, paused: store._queue(queue))


# ── partitions and runs ──


@mutant("turns")
def partition_weights_ignored(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, claim, "after_turn", lambda turn, v, tag, weight: turn(v, tag, 1))


@mutant("turns")
def partitions_join_at_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turns, "join", lambda queue, flow: None)


@mutant("turns")
def partitions_catch_up_on_missed_turns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turns, "join", lambda queue, flow: None)
    patch.setattr(claim, "after_turn", lambda v, tag, weight: (v, tag + round(turns.U / weight)))


@mutant("partitions")
def ordered_partition_not_exclusive(patch: pytest.MonkeyPatch) -> None:
    free = lambda flow: bool(flow.line) and flow.blocked_until is None and flow.held_by is None  # noqa: E731
    patch.setattr(FlowRecord, "eligible", free)


@mutant("partitions")
def delayed_head_overtaken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "block", lambda queue, flow, until, seq: None)


@mutant("partitions")
def partition_retry_blocks_only_its_task(patch: pytest.MonkeyPatch) -> None:
    wrap(
        patch,
        MemoryTransport,
        "_put_off",
        lambda f, s, task, flow, delay, whole, now: f(s, task, flow, delay, False, now),
    )


@mutant("partitions")
def empty_partitions_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlowRecord, "empty", lambda flow: False)


@mutant("runs")
def follower_may_settle_before_its_head(patch: pytest.MonkeyPatch) -> None:
    def settle(original: Any, store: Any, task: TaskRecord, item: Settlement, now: int) -> bool:
        flow = task.flow
        assert flow is not None
        ordered, flow.ordered = flow.ordered, flow.ordered and not isinstance(item.outcome, Ack)
        try:
            return bool(original(store, task, item, now))
        finally:
            flow.ordered = ordered

    wrap(patch, MemoryTransport, "_settle", settle)


@mutant("runs")
def rest_of_a_run_stays_in_hands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "runs_behind", lambda queue, task: iter(()))


@mutant("runs")
def no_followers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "_take_followers", lambda *args: None)


@mutant("hold")
def hold_ignored(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, QueueRecord, "configure", lambda f, queue, config: f(queue, replace(config, on_dead="continue")))
