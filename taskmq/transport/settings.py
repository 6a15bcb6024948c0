"""Queue settings as every store treats them: seeded once, compared afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from taskmq.errors import ConfigError
from taskmq.message import Message
from taskmq.queue import QueueConfig

NOT_YET = ("max_queued", "rate")


def config_drift(wanted: QueueConfig, stored: QueueConfig, paused: bool) -> list[str]:
    """The settings in which a stored queue differs from what the app asks for."""
    names = [field.name for field in fields(QueueConfig) if field.name != "paused"]
    drift = [name for name in names if getattr(wanted, name) != getattr(stored, name)]
    return [*drift, "paused"] if wanted.paused != paused else drift


def refuse_unsupported(store: str, queues: Mapping[str, QueueConfig]) -> None:
    """Raise ConfigError for a setting that no store enforces yet, rather than take it and ignore it."""
    for name, config in queues.items():
        for setting in NOT_YET:
            if getattr(config, setting) is not None:
                raise ConfigError(f"queue {name!r}: {setting} is not enforced by the {store} store yet; remove it")


def refuse_unenforced(store: str, messages: Iterable[Message]) -> None:
    """Raise ConfigError for a limit that no store enforces yet, rather than take it and ignore it."""
    for message in messages:
        if message.limit is not None:
            raise ConfigError(f"limit={message.limit!r} is not enforced by the {store} store yet; nothing was stored")
        if message.partition is not None and message.partition.max_running is not None:
            raise ConfigError(f"Partition(max_running=…) is not enforced by the {store} store yet; nothing was stored")
