"""Hearing of what other processes have committed: a thread that waits in a store while somebody hopes for news.

What it hears is not precise – a task may be claimable that none of our claims can run – so it speaks less and less
often while it is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from taskmq.errors import TaskMQError
from taskmq.transport.base import Wait
from taskmq.transport.serving import ServingStore

log = logging.getLogger("taskmq.server")

LONGEST_WAIT = 1.0
"""Seconds of one wait, after which a change of what it listens to is noticed."""
FIRST_PAUSE, QUIETEST = 0.01, 1.0
"""Seconds between two pieces of news that led to nothing: at first, and at most."""
QUICK = 0.05
"""Seconds: a wait that ends sooner found what had been there before."""


class Listener:
    """A daemon thread for one environment. ``heard`` is called on it, with the monotonic time of the look."""

    def __init__(self, store: Callable[[], ServingStore], heard: Callable[[float], None]) -> None:
        self._store = store
        self._heard = heard
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._queues: tuple[str, ...] = ()
        threading.Thread(target=self._run, name="taskmq-listen", daemon=True).start()

    def listen(self, queues: Collection[str]) -> None:
        """To these queues; with none it sleeps."""
        if len(queues) != len(self._queues) or not set(self._queues).issuperset(queues):
            self._queues = tuple(sorted(queues))
            if queues:
                self._wanted.set()
            else:
                self._wanted.clear()

    def stop(self) -> None:
        """End soon."""
        self._stopped.set()
        self._wanted.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            self._wanted.wait()
            queues, began = self._queues, time.monotonic()
            if not queues:
                pause = FIRST_PAUSE
                continue
            try:
                found = self._store().wait(Wait(queues=queues, timeout=LONGEST_WAIT))
            except (TaskMQError, RuntimeError) as error:  # the store is away, or closed at the end
                log.debug("listening: %s", error)
                pause = QUIETEST
                continue
            now = time.monotonic()
            if found:
                self._heard(now)
                pause = min(QUIETEST, max(FIRST_PAUSE, pause * 2)) if now - began < QUICK else FIRST_PAUSE
            else:
                pause = 0.0
