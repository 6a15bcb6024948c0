"""A queue's settings as its row keeps them: columns for what statements need, and all of them as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

import msgspec

from taskmq.errors import InvalidArgument
from taskmq.queue import QueueConfig, Rate

_SETTINGS = {field.name for field in fields(QueueConfig)}
_decode_settings = msgspec.json.Decoder(dict[str, Any]).decode


def config_columns(config: QueueConfig) -> dict[str, Any]:
    """What is stored of settings, by column; flags as 0 and 1."""
    return {
        "aging_us": config.aging_us,
        "weight": config.weight,
        "max_running": config.max_running,
        "max_queued": config.max_queued,
        "hold": int(config.on_dead == "hold"),
        "lease_us": config.lease_us,
        "paused": int(config.paused),
        "config": msgspec.json.encode(asdict(config)).decode(),
        "rate": None if config.rate is None else msgspec.json.encode(config.rate).decode(),
    }


def decode_config(text: str) -> QueueConfig:
    """Stored settings. Fields that this version does not know are dropped; damaged settings count as none."""
    try:
        stored = _decode_settings(text)
        values = {name: value for name, value in stored.items() if name in _SETTINGS}
        if values.get("rate") is not None:
            values["rate"] = Rate(**values["rate"])
        return QueueConfig(**values)
    except (msgspec.DecodeError, InvalidArgument, TypeError):
        return QueueConfig()


@lru_cache(256)
def stored_rate(text: str | None) -> Rate | None:
    """The rate as the queue's row has it; one that something has damaged counts as none."""
    try:
        return None if text is None else msgspec.json.decode(text, type=Rate)
    except msgspec.DecodeError:
        return None
