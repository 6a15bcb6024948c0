"""Why a task does not start now, as rules that programs can read. An empty list: it is eligible."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from taskmq.policy.order import Key, sort_key
from taskmq.server.database.sessions import active
from taskmq.server.permissions import Identity
from taskmq.server.views import reserved
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import PartitionInfo, QueueStats
from taskmq.transport.serving import Search, ServingStore
from taskmq.wire.times import format_time

if TYPE_CHECKING:
    from taskmq.server.node import Node

Holds = list[dict[str, Any]]
LINE = 1000
"""So many tasks of an ordered partition are looked at to find who is first."""


def holds(node: Node, identity: Identity, info: TaskInfo) -> Holds:
    """Every rule that holds it back. Blocking."""
    store = node.stores.of(identity.environment_id)
    if info.state is TaskState.RUNNING:
        return [_hold("reserved", "a worker has it and has not started it", info.lease_until)] if reserved(info) else []
    found: Holds = []
    if info.available_at > store.now():
        found.append(_hold("not_due", "it is not due yet", info.available_at))
    aging_us = 0
    for stats in store.stats([info.queue]):
        found += _of_queue(stats)
        aging_us = stats.config.aging_us
    if info.partition is not None:
        for partition in store.partitions(info.queue, [info.partition]):
            found += _of_partition(partition)
            if partition.ordered and partition.waiting > 1 and _is_behind(store, info, aging_us):
                found.append(_hold("behind", "others of its ordered partition are before it"))
    if info.limit is not None:
        for limit in store.limits([info.limit.key]):
            if limit.running >= info.limit.n:
                found.append(_hold("resource_key", f"{limit.running} tasks of its resource key run"))
    return found + _of_workers(node, identity, info)


def _of_queue(stats: QueueStats) -> Holds:
    found = []
    if stats.config.paused:
        found.append(_hold("paused", "its queue is paused"))
    if stats.config.max_running is not None and stats.running >= stats.config.max_running:
        found.append(_hold("max_running", f"{stats.running} tasks of its queue run, as many as may"))
    if stats.next_start_at is not None:
        found.append(_hold("start_rate", "its queue has started as many tasks as its rate allows", stats.next_start_at))
    return found


def _is_behind(store: ServingStore, info: TaskInfo, aging_us: int) -> bool:
    """Whether another one that waits in its ordered partition, or is to run again, comes first."""
    states = [TaskState.QUEUED, TaskState.RETRYING]
    line = store.search(Search(queues=[info.queue], partition=info.partition, states=states, limit=LINE)).tasks
    return min((_key(task, aging_us) for task in line), default=_key(info, aging_us)) < _key(info, aging_us)


def _key(info: TaskInfo, aging_us: int) -> Key:
    """Its place in line, which a retry does not change, though its ``available_at`` does."""
    return sort_key(aging_us, info.priority, info.dispatch_at + info.priority * aging_us, info.seq)


def _of_partition(partition: PartitionInfo) -> Holds:
    found = []
    if partition.paused or partition.held_by is not None:
        why = "its partition is paused" if partition.paused else "its partition is held by a dead task"
        found.append(_hold("partition_held", why))
    elif partition.ordered and partition.running:
        found.append(_hold("partition_held", "a worker holds its ordered partition"))
    if partition.blocked_until is not None:
        found.append(_hold("partition_blocked", "a retry or defer blocks its partition", partition.blocked_until))
    return found


def _of_workers(node: Node, identity: Identity, info: TaskInfo) -> Holds:
    with node.database.read() as connection:
        since = time.time_ns() // 1000 - 60_000_000
        sessions = active(connection, identity.environment_id, since)
    if not sessions:
        return [_hold("no_worker", "no worker is connected")]
    pair = [info.handler, info.version or "v1"]
    if not any(pair in session.info.get("capabilities", ()) for session in sessions):
        return [_hold("handler_unknown", "no connected worker has its handler and version")]
    return []


def _hold(rule: str, text: str, until: int | None = None) -> dict[str, Any]:
    shown = {"rule": rule, "text": text}
    return shown if until is None else {**shown, "until": format_time(until)}
