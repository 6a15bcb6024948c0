"""Faults in the gates of a queue: max_queued and rates; and what happens when they are read too early."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from taskmq.errors import QueueFull
from taskmq.message import Message
from taskmq.policy import claim, rate
from taskmq.queue import Rate
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.memory import transport as memory
from taskmq.transport.memory.records import QueueRecord, TaskRecord
from tests.conformance.mutants import mutant, wrap

# ── max_queued ──


@mutant("queued")
def max_queued_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "check_room", lambda queue, most, queued, more: None)


def _room(patch: pytest.MonkeyPatch, count: Any) -> None:
    """Count a queue's waiting tasks otherwise."""

    def check_room(original: Any, name: str, most: int | None, queued: int, more: int) -> None:
        original(name, most, queued + count(stores[-1]._queue(name)), more)

    stores: list[Any] = []
    wrap(
        patch, MemoryTransport, "_check_room", lambda f, store, messages: (stores.append(store), f(store, messages))[1]
    )
    wrap(patch, memory, "check_room", check_room)


@mutant("queued")
def max_queued_counts_running_ones(patch: pytest.MonkeyPatch) -> None:
    _room(patch, lambda queue: queue.running)


@mutant("queued")
def max_queued_counts_only_what_is_in_line(patch: pytest.MonkeyPatch) -> None:
    _room(patch, lambda queue: -len(queue.due))


@mutant("queued")
def max_queued_counts_no_parked_ones(patch: pytest.MonkeyPatch) -> None:
    _room(patch, lambda queue: -sum(flow.aside for flow in (queue.plain, *queue.flows.values())))


@mutant("queued")
def max_queued_counts_duplicates(patch: pytest.MonkeyPatch) -> None:
    def publish(original: Any, store: Any, params: Any) -> Any:
        store._check_room(params.messages)
        return original(store, params)

    wrap(patch, MemoryTransport, "publish", publish)


@mutant("queued")
def max_queued_is_checked_message_by_message(patch: pytest.MonkeyPatch) -> None:
    def accept(original: Any, store: Any, message: Message, now: int) -> None:
        room(store, [message])
        original(store, message, now)

    room = MemoryTransport._check_room
    wrap(patch, MemoryTransport, "_accept", accept)
    patch.setattr(MemoryTransport, "_check_room", lambda store, messages: None)


@mutant("queued")
def max_queued_refuses_what_comes_back(patch: pytest.MonkeyPatch) -> None:
    def replay(original: Any, store: Any, task: TaskRecord | None, *rest: Any) -> bool:
        try:
            store._check_room([] if task is None else [task.message])
        except QueueFull:
            return False
        return bool(original(store, task, *rest))

    wrap(patch, MemoryTransport, "_replay", replay)


# ── rates ──


@mutant("rates")
def rate_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "_rate", property(lambda queue: None))


@mutant("rates")
def rate_token_returned_at_the_end(patch: pytest.MonkeyPatch) -> None:
    def release(original: Any, store: Any, task: TaskRecord) -> None:
        original(store, task)
        task.queue.count_starts(-1, store._clock.now())

    wrap(patch, MemoryTransport, "_release", release)


@mutant("rates")
def rate_burst_ignored(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, rate, "level_at", lambda f, limit, *rest: f(replace(limit, burst=None), *rest))


@mutant("rates")
def rate_bucket_overfull(patch: pytest.MonkeyPatch) -> None:
    def level_at(original: Any, limit: Rate, level: int | None, since: int, now: int) -> int:
        if level is None:
            return int(original(limit, level, since, now))
        return level + max(0, now - since) * limit.count

    wrap(patch, rate, "level_at", level_at)


@mutant("rates")
def rate_fraction_of_a_token_lost(patch: pytest.MonkeyPatch) -> None:
    def level_at(original: Any, limit: Rate, level: int | None, since: int, now: int) -> int:
        exact, token = original(limit, level, since, now), round(limit.per * 1e6)
        return int(exact // token * token)

    wrap(patch, rate, "level_at", level_at)


@mutant("rates")
def rate_keeps_its_level_when_it_changes(patch: pytest.MonkeyPatch) -> None:
    def configure(original: Any, queue: QueueRecord, config: Any) -> None:
        level = queue.level
        original(queue, config)
        queue.level = level

    wrap(patch, QueueRecord, "configure", configure)


@mutant("rates")
def rate_starts_full_with_every_configuration(patch: pytest.MonkeyPatch) -> None:
    def configure(original: Any, queue: QueueRecord, config: Any) -> None:
        original(queue, config)
        queue.level = None

    wrap(patch, QueueRecord, "configure", configure)


@mutant("rates")
def rate_takes_no_token_of_followers(patch: pytest.MonkeyPatch) -> None:
    def write_back(candidate: claim.Queue, now: int) -> None:
        candidate.taken -= sum(max(0, flow.taken - 1) for flow in candidate.flows if flow.ordered)
        original(candidate, now)

    original = MemoryTransport._write_back
    patch.setattr(MemoryTransport, "_write_back", staticmethod(write_back))


@mutant("rates")
def next_start_untold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRecord, "next_start_at", lambda queue, now: None)


# ── many at once ──


def _read_before_the_lock(patch: pytest.MonkeyPatch, verb: str, owner: Any, check: str) -> None:
    """What the check reads is read before the verb takes the lock: by then others may have acted on the same."""
    seen = threading.local()

    def around(original: Any, store: Any, params: Any) -> Any:
        seen.running = {name: queue.running for name, queue in list(store._queues.items())}
        seen.waiting = {name: len(queue.tasks) - queue.running for name, queue in list(store._queues.items())}
        time.sleep(0.001)
        return original(store, params)

    def stale(original: Any, *arguments: Any) -> Any:
        if not hasattr(seen, "running"):
            return original(*arguments)
        if check == "room":
            queue, now = arguments
            running, queue.running = queue.running, seen.running.get(queue.name, 0)
            try:
                return original(queue, now)
            finally:
                queue.running = running
        name, most, _, more = arguments
        return original(name, most, seen.waiting.get(name, 0), more)

    wrap(patch, MemoryTransport, verb, around)
    wrap(patch, owner, check, stale)


@mutant("crowds")
def max_running_read_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    _read_before_the_lock(patch, "reserve", QueueRecord, "room")


@mutant("crowds")
def max_queued_read_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    _read_before_the_lock(patch, "publish", memory, "check_room")
