"""Pools run handlers. They take jobs from the desk and return outcomes to it; none of them talks to the store.

``threads``  N handler threads (the default)          ``asyncio``    N coroutines on one event loop
``solo``     the fetch loop's own thread              ``processes``  N child processes
"""

from __future__ import annotations

from taskmq.worker.pools.base import Pool

__all__ = ["Pool"]
