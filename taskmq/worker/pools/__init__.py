"""Pools run handlers. They take jobs from the desk and return outcomes to it; none of them talks to the store.

``threads``  N handler threads (the default)          ``solo``  the fetch loop's own thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from taskmq.worker.pools.solo import SoloPool
from taskmq.worker.pools.threads import ThreadsPool

if TYPE_CHECKING:
    from taskmq.worker.fetch import Fetch
    from taskmq.worker.service import Services


class Pool(Protocol):
    """What the worker needs of a pool."""

    def start(self, services: Services, fetch: Fetch, ended: Callable[[], None]) -> None:
        """Start its threads, if it has any, as services of the worker.

        One that turns the fetch loop in place of the fetch thread calls ``ended`` if the loop ends in its hands.
        """
        ...

    def serve(self, fetch: Fetch) -> None:
        """Keep the fetch loop turning until it is over. Runs on the fetch thread."""
        ...


__all__ = ["Pool", "SoloPool", "ThreadsPool"]
