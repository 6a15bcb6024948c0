"""The history of a task's failed attempts, kept short enough to carry."""

from __future__ import annotations

import msgspec

from taskmq.state import Attempt

FIRST = 5
LAST = 32
"""A server tells a late repetition of a finish by its attempt here, as long as it is one of so many."""


def decode_log(text: str | bytes | None) -> list[Attempt]:
    """A stored history; one that something has damaged counts as none, for the task must be able to go on."""
    try:
        return _decode(text) if text else []
    except msgspec.DecodeError:
        return []


_decode = msgspec.json.Decoder(list[Attempt]).decode


def append_attempt(log: list[Attempt], attempt: Attempt) -> None:
    """Add an attempt. Of a long history the first 5 and the last 32 stay; only the newest keeps its traceback."""
    if log and log[-1].traceback is not None:
        log[-1] = msgspec.structs.replace(log[-1], traceback=None)
    log.append(attempt)
    if len(log) > FIRST + LAST:
        del log[FIRST]
