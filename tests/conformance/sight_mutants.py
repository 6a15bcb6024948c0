"""Faults in what is seen: by claims that cannot run everything, and by people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from taskmq.policy import claim
from taskmq.transport.base import QueueStats
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.memory.gate import MemoryGate
from taskmq.transport.memory.lines import Lines, Spec
from taskmq.transport.memory.records import QueueRecord, TaskRecord
from tests.conformance.mutants import mutant, wrap

# ── capabilities ──


def _runs(patch: pytest.MonkeyPatch, runs: Any) -> None:
    patch.setattr(MemoryGate, "runs", runs)


@mutant("capabilities")
def capabilities_ignored(patch: pytest.MonkeyPatch) -> None:
    _runs(patch, lambda gate, spec: True)


@mutant("capabilities")
def capability_ignores_the_version(patch: pytest.MonkeyPatch) -> None:
    def runs(gate: Any, spec: Spec) -> bool:
        known = gate._pairs is None or spec.handler in {name for name, _ in gate._pairs}
        return bool(known and (gate._keys or not spec.keyed))

    _runs(patch, runs)


@mutant("capabilities")
def capability_for_keys_ignored(patch: pytest.MonkeyPatch) -> None:
    _runs(patch, lambda gate, spec: gate._pairs is None or (spec.handler, spec.version) in gate._pairs)


@mutant("capabilities")
def hidden_head_blocks_the_unpartitioned(patch: pytest.MonkeyPatch) -> None:
    def walk(original: Any, line: Lines[Any], runs: Any = None) -> Any:
        if runs is None:
            return original(line)
        return _until_hidden(original(line), line, runs)

    wrap(patch, Lines, "walk", walk)


def _until_hidden(entries: Iterable[Any], line: Lines[Any], runs: Any) -> Any:
    for entry in entries:
        if not any(entry in of_spec and runs(spec) for spec, of_spec in line._lines.items()):
            return
        yield entry


@mutant("capabilities")
def hidden_head_of_a_parallel_partition_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    def candidate(original: Any, store: Any, queue: QueueRecord, gate: MemoryGate, now: int) -> claim.Queue:
        view: claim.Queue = original(store, queue, gate, now)
        flows = iter([store._claim_flow(flow, gate.runs) for flow in queue.flows.values() if flow.eligible()])
        view.read = lambda k: [flow for flow in flows if flow.head() is not None]
        view._last_read = None
        return view

    wrap(patch, MemoryTransport, "_candidate", candidate)


@mutant("capabilities")
def hidden_follower_joins_the_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryGate, "hides", lambda gate, key: False)


@mutant("capabilities")
def hidden_queue_takes_a_turn(patch: pytest.MonkeyPatch) -> None:
    def write_back(candidate: claim.Queue, now: int) -> None:
        if candidate.gate is not None and candidate.gate.restricted and not candidate.taken:  # type: ignore[attr-defined]
            candidate.served += 1
        original(candidate, now)

    original = MemoryTransport._write_back
    patch.setattr(MemoryTransport, "_write_back", staticmethod(write_back))


@mutant("capabilities")
def hidden_heads_make_the_band(patch: pytest.MonkeyPatch) -> None:
    def band(original: Any, view: claim.Queue) -> int:
        heads = [9 - key[0] for flow in (view.ref.plain, *view.ref.flows.values()) for key in flow.line.walk()]
        return 0 if view.aging else max(heads, default=int(original(view)))

    wrap(patch, claim.Queue, "band", band)


# ── progress, counts, watching ──


@mutant("progress")
def progress_dropped(patch: pytest.MonkeyPatch) -> None:
    def extend(original: Any, store: Any, params: Any) -> Any:
        return original(store, replace(params, items=[replace(item, progress=None) for item in params.items]))

    wrap(patch, MemoryTransport, "extend", extend)


def _progress_kept(patch: pytest.MonkeyPatch, verb: str) -> None:
    def around(original: Any, store: Any, *arguments: Any) -> Any:
        before = {task.id: task.progress for task in store._tasks.values()}
        try:
            return original(store, *arguments)
        finally:
            for task in store._tasks.values():
                task.progress = task.progress or before.get(task.id)

    wrap(patch, MemoryTransport, verb, around)


@mutant("progress")
def progress_kept_over_a_retry(patch: pytest.MonkeyPatch) -> None:
    _progress_kept(patch, "reserve")


@mutant("progress")
def progress_kept_over_a_replay(patch: pytest.MonkeyPatch) -> None:
    _progress_kept(patch, "replay")


@mutant("progress")
def progress_lost_at_the_end(patch: pytest.MonkeyPatch) -> None:
    def finish(original: Any, store: Any, task: TaskRecord, *rest: Any) -> None:
        task.progress = None
        original(store, task, *rest)

    wrap(patch, MemoryTransport, "_finish", finish)


@mutant("progress")
def silence_deletes_progress(patch: pytest.MonkeyPatch) -> None:
    def extend(original: Any, store: Any, params: Any) -> Any:
        for item in params.items:
            task = store._held(item.delivery)
            if task is not None:
                task.progress = item.progress
        return original(store, params)

    wrap(patch, MemoryTransport, "extend", extend)


def _stats(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    def stats(original: Any, store: Any, queue: QueueRecord, now: int) -> QueueStats:
        told: QueueStats = original(store, queue, now)
        return replace(told, **{name: value(store, queue, told) for name, value in changes.items()})

    wrap(patch, MemoryTransport, "_stats", stats)


@mutant("stats")
def ended_tasks_counted_by_handler(patch: pytest.MonkeyPatch) -> None:
    def by_handler(store: Any, queue: QueueRecord, told: QueueStats) -> dict[str, int]:
        handlers = [task.message.handler for task in store._tasks.values() if task.queue is queue]
        return {name: handlers.count(name) for name in sorted(handlers)}

    _stats(patch, by_handler=by_handler)


@mutant("stats")
def cancelled_tasks_counted_as_dead(patch: pytest.MonkeyPatch) -> None:
    def dead(store: Any, queue: QueueRecord, told: QueueStats) -> int:
        ended = [task for task in store._tasks.values() if task.queue is queue and task.state is not None]
        return sum(task.state.value in ("FAILED", "CANCELLED") for task in ended)

    _stats(patch, dead=dead)


@mutant("stats")
def dead_counted_where_they_were_published(patch: pytest.MonkeyPatch) -> None:
    def dead(store: Any, queue: QueueRecord, told: QueueStats) -> int:
        return told.dead + sum(t.replays for t in store._tasks.values() if t.message.queue == queue.name)

    _stats(patch, dead=dead)


@mutant("stats")
def age_of_what_stands_behind(patch: pytest.MonkeyPatch) -> None:
    def age(store: Any, queue: QueueRecord, told: QueueStats) -> int | None:
        flows = [queue.plain, *queue.flows.values()]
        waiting = [queue.tasks[key[2]] for flow in flows for key in flow.line.walk()]
        return max((store._clock.now() - task.ready_at() for task in waiting), default=None)

    _stats(patch, oldest_ready_age=age)


@mutant("stats")
def stopped_ignored_in_the_list_of_partitions(patch: pytest.MonkeyPatch) -> None:
    wrap(
        patch, MemoryTransport, "partitions", lambda f, store, queue, codes=(), *, stopped=False: f(store, queue, codes)
    )


@mutant("stats")
def flush_keeps_limits(patch: pytest.MonkeyPatch) -> None:
    def flush(original: Any, store: Any) -> None:
        limits = store._limits
        original(store)
        store._limits = limits

    wrap(patch, MemoryTransport, "flush", flush)


@mutant("watch")
def watch_ends_with_a_retry(patch: pytest.MonkeyPatch) -> None:
    def watch(original: Any, store: Any, task_id: str, timeout: float) -> bool:
        task = store._tasks.get(task_id)
        return task is None or task.place != task.RUNNING or bool(original(store, task_id, timeout))

    wrap(patch, MemoryTransport, "watch", watch)


@mutant("watch")
def watch_waits_for_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    def watch(original: Any, store: Any, task_id: str, timeout: float) -> bool:
        return task_id in store._tasks and bool(original(store, task_id, timeout))

    wrap(patch, MemoryTransport, "watch", watch)
