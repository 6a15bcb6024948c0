"""Task ids: UUIDv7 (RFC 9562), as 32 lower-case hex digits.

Time-ordered, so an index on them grows at one end. Ids of one process are strictly increasing: within a
millisecond the 74 random bits are counted upwards from a fresh random start (RFC 9562 §6.2, method 2).
"""

from __future__ import annotations

import os
import threading
import time

_VERSION_7 = 7 << 76
_VARIANT = 2 << 62
_RANDOM_BITS = 74
_LOW_62 = (1 << 62) - 1

_lock = threading.Lock()
_last_ms = 0
_counter = 0


def new_id() -> str:
    """A new task id, greater than every earlier one of this process."""
    global _last_ms, _counter
    with _lock:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > _last_ms:
            _last_ms = now_ms
            _counter = int.from_bytes(os.urandom(10), "big") >> (80 - _RANDOM_BITS + 1)  # top bit free: room to count
        else:
            _counter += 1
        ms, counter = _last_ms, _counter
    return f"{ms << 80 | _VERSION_7 | (counter >> 62) << 64 | _VARIANT | counter & _LOW_62:032x}"


def _forget_after_fork() -> None:
    """A forked child must not repeat its parent's counter."""
    global _lock, _last_ms
    _lock = threading.Lock()
    _last_ms = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
