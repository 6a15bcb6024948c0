"""A queue as it stands, from the counts and the looks that queries.py takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskmq.names import MAX_PRIORITY
from taskmq.queue import QueueConfig
from taskmq.transport.base import QueueStats
from taskmq.transport.sql.codes import COUNT_DEAD, COUNT_READY, COUNT_RETRYING, COUNT_RUNNING, COUNT_SCHEDULED
from taskmq.transport.sql.configs import decode_config

OVERDUE, RETRY_OVERDUE, RETRY_IN_LINE = 10, 11, 12
"""Kinds beside those of codes.py, for tasks whose count lags behind the time: due for the first time, due again and
not promoted yet; in line, but waiting for the end of a delay."""

Counts = dict[tuple[int, int], int]
"""(kind, priority) → tasks of a queue."""


def queue_stats(
    row: Sequence[Any], counts: Counts, handlers: dict[str, int], oldest: int | None, now: int
) -> QueueStats:
    """``row``: queue_id, name, config, paused, served, flows, when a rate lets the next task start."""
    _, name, config, paused, served, flows, next_start_at = row

    def total(kind: int) -> int:
        return sum(count for (known, _), count in counts.items() if known == kind)

    by_priority = {}
    for priority in range(MAX_PRIORITY, -1, -1):
        waiting = (COUNT_READY, OVERDUE, RETRY_OVERDUE)
        ready = sum(counts.get((kind, priority), 0) for kind in waiting) - counts.get((RETRY_IN_LINE, priority), 0)
        if ready:
            by_priority[priority] = ready
    settings = decode_config(config) if config else QueueConfig()
    return QueueStats(
        name=name,
        config=replace(settings, paused=bool(paused)),
        scheduled=total(COUNT_SCHEDULED) - total(OVERDUE),
        ready=sum(by_priority.values()),
        running=total(COUNT_RUNNING),
        retrying=total(COUNT_RETRYING) - total(RETRY_OVERDUE) + total(RETRY_IN_LINE),
        dead=total(COUNT_DEAD),
        by_priority=by_priority,
        by_handler={handler: count for handler, count in sorted(handlers.items()) if count},
        partitions=flows,
        oldest_ready_age=None if oldest is None else now - oldest,
        served=served,
        next_start_at=next_start_at,
    )
