"""Queue settings as every store treats them: seeded once, compared afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from taskmq.errors import ConfigError
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
