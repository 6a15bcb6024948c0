"""Who waits for a task's end on this node, and how they hear of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

FIRST_LOOK, LAST_LOOK = 0.1, 1.0
"""Seconds between two looks at the store for what happened on other nodes: at first, and at most."""


class Changes:
    """Wakes those who wait for a task. All methods are called on the loop's thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def tell(self, task_ids: Iterable[str]) -> None:
        """These tasks have changed."""
        for task_id in task_ids:
            for event in self._waiting.get(task_id, ()):
                event.set()

    def tell_all(self) -> None:
        """Everybody looks again: the node stops."""
        self.tell(list(self._waiting))

    def listen(self, task_id: str) -> asyncio.Event:
        """An event that is set at the task's next change; give it back with ``forget``."""
        event = asyncio.Event()
        self._waiting.setdefault(task_id, set()).add(event)
        return event

    def forget(self, task_id: str, event: asyncio.Event) -> None:
        """Nobody waits with this event any more."""
        events = self._waiting.get(task_id)
        if events is not None:
            events.discard(event)
            if not events:
                del self._waiting[task_id]


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Whether it was set in time; ready for the next wait."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    event.clear()
    return True


async def until(holds: Callable[[], bool], seconds: float, pace: float) -> None:
    """Look every ``pace`` seconds until it holds, at most so long: for what many things change and none announces."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(pace)
