"""May this user write all that the scripts write? Asked before the first one runs.

A script that is refused a command half-way stops there, and Redis takes nothing back: an ACL without ZADD would leave
records that stand in no line. So each writing command is named to the server once between MULTI and DISCARD, where it
is checked, also for the keys that it may touch, and never run. ``?lua=off`` needs it not: EXEC does all or nothing.
"""

from __future__ import annotations

WRITES: dict[str, tuple[str, ...]] = {
    "DEL": (),
    "EXPIRE": ("1",),
    "HDEL": ("f",),
    "HINCRBY": ("f", "1"),
    "HSET": ("f", "v"),
    "MSET": ("v",),
    "RPUSH": ("v",),
    "SADD": ("m",),
    "SET": ("v",),
    "SREM": ("m",),
    "ZADD": ("0", "m"),
    "ZREM": ("m",),
}
"""What the scripts write with (a test holds them to it), and what stands behind the key."""


def rehearsal(prefix: str) -> list[tuple[str, ...]]:
    """Every writing command, on a key that would be taskmq's, to be sent behind MULTI; the last takes all back."""
    return [*((name, f"{prefix}none", *rest) for name, rest in WRITES.items()), ("DISCARD",)]
