"""Faults in what becomes of a task: settle, leases, ends, records, keys."""

from __future__ import annotations

from typing import Any

import pytest

from taskmq.message import Message
from taskmq.outcome import Defer, Yield
from taskmq.transport.base import Found, Publish, Renewed, Settlement
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.memory import settle as memory
from taskmq.transport.memory.records import TaskRecord
from tests.conformance.mutants import mutant, wrap

# ── settle and leases ──


@mutant("leases")
def settle_without_epoch_check(patch: pytest.MonkeyPatch) -> None:
    def held(store: Any, delivery: Any) -> TaskRecord | None:
        task: TaskRecord | None = store._tasks.get(delivery.id)
        return task if task and task.place == task.RUNNING else None

    patch.setattr(MemoryTransport, "_held", held)


@mutant("leases")
def extend_answers_stale_leases(patch: pytest.MonkeyPatch) -> None:
    def extend(original: Any, store: Any, params: Any) -> list[Renewed]:
        return [Renewed(answer.lease_until or store._now(), answer.cancel) for answer in original(store, params)]

    wrap(patch, MemoryTransport, "extend", extend)


@mutant("leases")
def lost_leases_are_never_reaped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_reap", lambda store, queue, now, limit: 0)


@mutant("leases")
def reap_blames_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_blamed", staticmethod(lambda queue, ended: {task.seq for task in ended}))


@mutant("leases", "poison")
def reap_blames_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_blamed", staticmethod(lambda queue, ended: set()))


@mutant("poison")
def poison_goes_round(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "reason_of_death", lambda attempts, max_attempts, **counts: None)


def _attempts_after(patch: pytest.MonkeyPatch, kind: type) -> None:
    def settle(original: Any, store: Any, task: TaskRecord, item: Settlement, now: int) -> bool:
        task.attempts += isinstance(item.outcome, kind)
        return bool(original(store, task, item, now))

    wrap(patch, MemoryTransport, "_settle", settle)


@mutant("settle")
def defer_consumes_an_attempt(patch: pytest.MonkeyPatch) -> None:
    _attempts_after(patch, Defer)


@mutant("settle")
def hand_back_consumes_an_attempt(patch: pytest.MonkeyPatch) -> None:
    _attempts_after(patch, Yield)


@mutant("settle")
def reserve_before_settle(patch: pytest.MonkeyPatch) -> None:
    def both(store: Any, settle: Any, reserve: Any) -> Any:
        got = store.reserve(reserve)
        return store.settle(settle), got

    patch.setattr(MemoryTransport, "settle_and_reserve", both)


# ── ends and records ──


@mutant("results")
def results_dropped(patch: pytest.MonkeyPatch) -> None:
    def finish(original: Any, store: Any, task: TaskRecord, *rest: Any) -> None:
        task.result = None
        original(store, task, *rest)

    wrap(patch, MemoryTransport, "_finish", finish)


@mutant("results")
def retention_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskRecord, "retention", lambda task, state: 86_400_000_000)


@mutant("expiry")
def expired_tasks_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_expire", lambda store, queue, now, limit: 0)


@mutant("expiry", "cancel")
def deadline_and_cancel_forgotten_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_doomed", staticmethod(lambda task, now: None))


@mutant("cancel")
def cancel_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_cancel", lambda store, task, now: task and task.visible_state(now))


def _replayed(patch: pytest.MonkeyPatch, *fields: str) -> None:
    def replay(original: Any, store: Any, task: TaskRecord | None, *rest: Any) -> bool:
        kept = {field: getattr(task, field, None) for field in fields}
        done = bool(original(store, task, *rest))
        for field, value in kept.items() if done else ():
            setattr(task, field, value)
        return done

    wrap(patch, MemoryTransport, "_replay", replay)


@mutant("dead_letters")
def replay_keeps_the_spent_budget(patch: pytest.MonkeyPatch) -> None:
    _replayed(patch, "attempts")


@mutant("dead_letters")
def replay_keeps_counted_expiries(patch: pytest.MonkeyPatch) -> None:
    _replayed(patch, "blamed")


@mutant("inspect")
def find_shows_the_oldest_first(patch: pytest.MonkeyPatch) -> None:
    def find(original: Any, store: Any, params: Any) -> Found:
        found: Found = original(store, params)
        return Found(tasks=found.tasks[::-1], cursor=found.cursor)

    wrap(patch, MemoryTransport, "find", find)


# ── idempotency ──


@mutant("idempotency")
def keys_unchecked_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, MemoryTransport, "_holder", lambda f, store, message, in_batch, now: f(store, message, {}, now))


@mutant("idempotency")
def conflicts_pass_for_duplicates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Message, "digest", lambda message: "")


@mutant("idempotency")
def batch_stored_one_by_one(patch: pytest.MonkeyPatch) -> None:
    def publish(original: Any, store: Any, params: Publish) -> Any:
        return [receipt for message in params.messages for receipt in original(store, Publish(messages=[message]))]

    wrap(patch, MemoryTransport, "publish", publish)


@mutant("idempotency")
def keys_freed_when_their_task_ends(patch: pytest.MonkeyPatch) -> None:
    def finish(original: Any, store: Any, task: TaskRecord, *rest: Any) -> None:
        original(store, task, *rest)
        store._free_key(task)

    wrap(patch, MemoryTransport, "_finish", finish)


@mutant("idempotency")
def keys_never_freed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "_free_key", lambda *args, **kwargs: None)


@mutant("locks")
def locks_never_end(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, MemoryTransport, "lock", lambda f, store, name, owner, ttl: f(store, name, owner, 10**18))
