"""May this user write all that the scripts write? Asked before the first one runs.

A script that is refused a command half-way stops there, and Redis takes nothing back: an ACL without ZADD would leave
records that stand in no line. So each writing command is once named to the server between MULTI and DISCARD, where it is
checked, also for the keys that it may touch, and never run. ``?lua=off`` needs no such question: EXEC is all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import NoPermissionError

Commands = Sequence[Sequence[str]]

WRITES: dict[str, tuple[str, ...]] = {
    "DEL": (),
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


def refusal(prefix: str, send: Callable[[Commands], list[Any]]) -> Exception | None:
    """The server's first objection to the writing commands, if any; raises what ``send`` does.

    ``send`` must use one connection, and one that is closed afterwards: nothing in here may leave a transaction open.
    """
    if isinstance(send([("MULTI",)])[0], Exception):
        return None  # then it cannot be asked, and the scripts themselves will tell
    replies = send([*((name, f"{prefix}none", *rest) for name, rest in WRITES.items()), ("DISCARD",)])
    for reply in replies[:-1]:
        if isinstance(reply, NoPermissionError) or (isinstance(reply, Exception) and "unknown command" in str(reply)):
            return reply
    return None
