"""N threads that run handlers. All of them are daemons: a handler that never returns cannot keep a process alive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Job
from taskmq.worker.pools.base import Pool
from taskmq.worker.settling import YIELD

if TYPE_CHECKING:
    from taskmq.worker.executor import Executor
    from taskmq.worker.fetch import Fetch
    from taskmq.worker.service import Services


class ThreadsPool(Pool):
    """One handler thread for each place in ``desk.running``."""

    def start(self, services: Services, fetch: Fetch, ended: Callable[[], None]) -> None:
        """Start the handler threads."""
        for place in range(len(self._desk.running)):
            services.start(f"handler-{place}", partial(self._handle, place))

    def _handle(self, place: int) -> None:
        """The life of a handler thread."""
        own = Lock()
        own.acquire()
        desk = self._desk
        job = desk.take(own)
        while job is not None:
            if not job.cleared:
                desk.ask_mark(job, own)
            job = run(job, desk, self._executor, place) or desk.take(own)


def run(job: Job, desk: Desk, executor: Executor, place: int) -> Job | None:
    """Run one job unless it is too late for it; answers the next of its run when that is to be run here and now."""
    now = monotonic()
    if not job.startable(now):
        return desk.done(job, YIELD)
    job.started = now
    desk.running[place] = job
    outcome = executor.run(job.delivery)
    job.ended = monotonic()
    desk.running[place] = None
    return desk.done(job, outcome)


__all__ = ["ThreadsPool", "run"]
