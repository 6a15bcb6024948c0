"""Who is first in a line of one queue (model.md §4).

A key is three integers, and the smaller key goes first:

    strict   (9 - priority, 0, seq)                larger priority first, then first accepted
    aging    (dispatch_at, priority, seq)          dispatch_at = available_at - priority * step

In an aging queue, at equal ``dispatch_at`` the smaller priority has the earlier ``available_at``, so
``(dispatch_at, priority)`` is the order ``(dispatch_at, available_at)`` in fewer bits.
"""

from __future__ import annotations

from taskmq.names import MAX_PRIORITY

Key = tuple[int, ...]
"""Those three integers; a store may append what it wants to know of the task, for ``seq`` settles every comparison."""


def sort_key(aging_us: int, priority: int, available_at: int, seq: int) -> tuple[int, int, int]:
    """A task's key in its line; ``aging_us`` is what a priority level is worth, 0 for a strict queue."""
    if aging_us:
        return (available_at - priority * aging_us, priority, seq)
    return (MAX_PRIORITY - priority, 0, seq)


def priority_of(key: Key) -> int:
    """The priority of the task that has this key; of both policies, for a queue's may have been changed meanwhile."""
    return MAX_PRIORITY - key[0] if 0 <= key[0] <= MAX_PRIORITY else key[1]
