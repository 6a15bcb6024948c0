"""What "the same content" means for an idempotency key: the digest of the accepted fields, defaults left out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from taskmq.wire.times import format_time, parse_time

NOT_CONTENT = frozenset({"queue_id", "queue", "idempotency_key", "traceparent"})
"""Which task it is, and who asked for it: not what it is."""

DEFAULTS: Mapping[str, Any] = {
    "handler_version": "v1",
    "payload_version": "v1",
    "payload": None,
    "priority": 0,
    "delay_ms": 0,
    "max_attempts": 3,
    "partition_weight": 1,
    "retention_ms": 604_800_000,
}
RETRY_DEFAULTS: Mapping[str, Any] = {"backoff": "exponential", "base_ms": 1000, "cap_ms": 300_000, "jitter": True}
_TIMES = frozenset({"available_at", "expires_at", "deadline"})

_slowly = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode
_quickly = msgspec.json.Encoder(order="sorted").encode
_MAY_BE_A_FLOAT = re.compile(rb"[0-9][.eE]")


def _encode(value: Any) -> bytes:
    """Sorted JSON with floats as Python writes them: by msgspec, which differs in these alone, where there are none."""
    data = _quickly(value)
    return _slowly(value).encode() if _MAY_BE_A_FLOAT.search(data) else data


def canonical(fields: Mapping[str, Any]) -> bytes:
    """The canonical text of a submission's decoded body: same text, same content."""
    kept = {}
    for name, value in fields.items():
        if name in NOT_CONTENT:
            continue
        if name == "retry":
            value = {k: v for k, v in value.items() if not _same(v, RETRY_DEFAULTS.get(k))}
            if not value:
                continue
        elif name in DEFAULTS and _same(value, DEFAULTS[name]):
            continue
        elif name in _TIMES:
            value = format_time(parse_time(value))
        kept[name] = value
    return _encode(kept)


def digest(fields: Mapping[str, Any]) -> str:
    """``v1:`` and the SHA-256 of the canonical text."""
    return f"v1:{hashlib.sha256(canonical(fields)).hexdigest()}"


def settle_digest(outcome: str, fields: Mapping[str, Any]) -> str:
    """What "the same outcome" means for a repeated finish."""
    kept = {
        name: value for name, value in fields.items() if value is not None and (value is not False or name == "result")
    }
    return hashlib.blake2b(_encode([outcome, kept]), digest_size=16).hexdigest()


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
