"""No fork while a thread is inside SQLite: the child would inherit SQLite's own locks, held by nobody, for ever.

Every use of a connection goes through a gate. A fork closes the gates, waits until nobody is inside, and opens them
again: in the parent for those who wait, in the child, where no other thread exists, anew.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress

PATIENCE = 5.0
"""Seconds that a fork waits for a long transaction; then it goes ahead."""


class ForkGate:
    """A context manager around each use of SQLite. Many may be inside; none while the process is being forked.

    Made of a raw lock and a list, whose steps an interrupt cannot divide, as it could a Condition's.
    """

    def __init__(self) -> None:
        self.reset()
        _gates.add(self)

    def reset(self) -> None:
        """Nobody is inside, and the gate is open."""
        self._gate = threading.Lock()
        self._inside: list[None] = []

    def __enter__(self) -> None:
        with self._gate:
            self._inside.append(None)

    def __exit__(self, *error: object) -> None:
        self._inside.pop()

    def close(self) -> None:
        """Let nobody in, and wait until nobody is inside."""
        end = time.monotonic() + PATIENCE
        self._gate.acquire(timeout=PATIENCE)
        while self._inside and time.monotonic() < end:
            time.sleep(0.0005)

    def open(self) -> None:
        """Let everybody in."""
        with suppress(RuntimeError):  # another fork was under way all the while
            self._gate.release()


_gates: weakref.WeakSet[ForkGate] = weakref.WeakSet()


def _before() -> None:
    for gate in list(_gates):
        gate.close()


def _after_in_parent() -> None:
    for gate in list(_gates):
        gate.open()


def _after_in_child() -> None:
    for gate in list(_gates):
        gate.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
