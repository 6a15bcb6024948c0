"""Queue settings as every store treats them: seeded once, compared afterwards."""

from __future__ import annotations

from dataclasses import fields

from taskmq.errors import QueueFull
from taskmq.queue import QueueConfig


def config_drift(wanted: QueueConfig, stored: QueueConfig, paused: bool) -> list[str]:
    """The settings in which a stored queue differs from what the app asks for."""
    names = [field.name for field in fields(QueueConfig) if field.name != "paused"]
    drift = [name for name in names if getattr(wanted, name) != getattr(stored, name)]
    return [*drift, "paused"] if wanted.paused != paused else drift


def check_room(queue: str, max_queued: int | None, queued: int, more: int) -> None:
    """Raise QueueFull when ``more`` tasks do not fit into a queue where ``queued`` wait or are due later."""
    if more and max_queued is not None and queued + more > max_queued:
        raise QueueFull(
            f"queue {queue!r} has {queued:,} tasks waiting and takes {max_queued:,} (max_queued): {more:,} more do not "
            "fit, nothing was stored; try again later",
            queue=queue,
            max_queued=max_queued,
            queued=queued,
        )
