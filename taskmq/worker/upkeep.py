"""Upkeep of the store: promote, reap, delete. Any worker can do it; a named lease makes one at a time do it.

It has a thread of its own, since a slow round must delay neither heartbeats nor fetching.
"""

from __future__ import annotations

import random
from contextlib import suppress
from threading import Event
from time import monotonic

from taskmq.errors import TransportError
from taskmq.transport.base import Maintain, Transport
from taskmq.worker.outage import Outage

LOCK = "maintenance"
LEASE = 15_000_000
"""Microseconds that the right to do it is taken for."""
PERIOD = 1.0
RENEWED_FOR = 5.0
"""Seconds after which the right is asked for again, whoever has it: a write to the store each time."""
MOST_ROUNDS = 100
"""Full rounds in a row before the right is renewed."""


class Upkeep:
    """Calls ``Transport.maintain`` about once a second while it holds the named lease."""

    def __init__(self, store: Transport, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._stopped = Event()
        self._outage = Outage("maintenance: the store", PERIOD, PERIOD)

    def stop(self) -> None:
        """Let ``run`` return after the round under way."""
        self._stopped.set()

    def run(self) -> None:
        """Serve until stopped."""
        mine, asked = False, float("-inf")
        pause = _period()
        while not self._stopped.wait(pause):
            pause = _period()
            try:
                if monotonic() - asked > RENEWED_FOR:
                    asked = monotonic()
                    mine = self._store.lock(LOCK, self._owner, LEASE)
                if mine:
                    self._rounds()
                self._outage.over()
            except TransportError as error:
                pause = self._outage.failed(error)
        with suppress(TransportError):
            self._store.unlock(LOCK, self._owner)

    def _rounds(self) -> None:
        for _ in range(MOST_ROUNDS):
            if self._stopped.is_set() or not self._store.maintain(Maintain()).more:
                return


def _period() -> float:
    return PERIOD * random.uniform(0.8, 1.2)


__all__ = ["Upkeep"]
