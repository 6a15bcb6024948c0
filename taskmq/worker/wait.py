"""The waiter: a thread that blocks in the store's ``wait``, so that the fetch loop never has to.

The fetch loop arms it after a reserve that has emptied the queues, and looks again whenever it returns, for whatever
reason. Idle, that is one look a second. A store whose ``wait`` returns at once although nothing can be claimed (a queue
at its rate, say) must not make the two spin: after a few such false alarms there is a pause before the next wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from time import monotonic

from taskmq.errors import TransportError
from taskmq.transport.base import Transport, Wait
from taskmq.worker.bell import Bell
from taskmq.worker.outage import Outage

LONGEST_WAIT = 1.0
SOON = 0.002
"""Seconds: a wait that ends sooner, with nothing to claim afterwards, was a false alarm."""
FALSE_ALARMS = 3
FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.25
FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 2.0


class Waiter:
    """Blocks in ``Transport.wait`` when armed, then calls ``wake``."""

    def __init__(self, store: Transport, queues: Sequence[str], wake: Callable[[], None]) -> None:
        self._store = store
        self._params = Wait(queues=queues, timeout=LONGEST_WAIT)
        self._wake = wake
        self._go = Bell()
        self._armed = False
        self._heard = False
        self._stopped = False
        self._false_alarms = 0
        self._outage = Outage("waiter: the store", FIRST_BACKOFF, LONGEST_BACKOFF)
        self._backoff = 0.0
        self._soon = False

    # ── the fetch loop calls ──

    def arm(self, fruitless: bool) -> None:
        """Wait for work, unless it does already. ``fruitless``: there was nothing to claim after the last alarm."""
        if self._armed or self._stopped:
            return
        self._false_alarms = self._false_alarms + 1 if fruitless and self._soon else 0
        self._armed = True
        self._go.ring()

    def heard(self) -> bool:
        """Whether a wait has ended since the last call."""
        heard, self._heard = self._heard, False
        return heard

    def stop(self) -> None:
        """Let ``run`` return; a wait under way is cut short."""
        self._stopped = True
        self._go.ring()
        self._store.wake()

    # ── its own thread ──

    def run(self) -> None:
        """Serve until stopped."""
        while True:
            self._go.wait()
            if self._stopped:
                return
            self._pause()
            self._wait()
            self._armed = False
            self._heard = True
            self._wake()

    def _wait(self) -> None:
        began = monotonic()
        self._soon = False
        self._backoff = 0.0
        try:
            work = self._store.wait(self._params)
        except TransportError as error:
            if not self._stopped:  # or it is the end of the store that has ended the wait
                self._backoff = self._outage.failed(error)
            return
        self._outage.over()
        self._soon = work and monotonic() - began < SOON

    def _pause(self) -> None:
        """After failures or false alarms."""
        pause = self._backoff or pause_before(self._false_alarms) * random.uniform(0.5, 1.0)
        if pause and not self._stopped and self._go.wait(pause):
            self._go.ring()  # stopped meanwhile


def pause_before(false_alarms: int) -> float:
    """Seconds to pause before the next wait, after so many false alarms in a row."""
    if false_alarms >= FALSE_ALARMS:
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(false_alarms - FALSE_ALARMS, 10))
    return 0.0


__all__ = ["Waiter", "pause_before"]
