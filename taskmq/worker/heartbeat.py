"""The heartbeat: keeps leases alive, names started tasks, learns of cancels and lost leases.

It has a thread of its own and needs nothing from handlers, event loops or the fetch loop: whatever those do, leases
are renewed every third of the shortest one in hand, all in one call. While the store fails it tries again sooner.
It stays alive during shutdown until nothing runs any more, or leases would end during a long grace.

Progress rides along. What a handler has told lies in the *news*, and the heartbeat, which looks up every half a second
anyway, sends it at most once a second for each task, with the lease's renewal or ahead of it.

What it learns it writes into the job and leaves the rest to others: a job that is lost or cancelled before its start
gets ``usable_until`` in the past, so whoever takes it will not run it; a running one has its context cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from taskmq.errors import TransportError
from taskmq.state import Progress
from taskmq.transport.base import Extend, Renewal, Renewed, Transport, WorkerInfo
from taskmq.worker.bell import Bell
from taskmq.worker.jobs import NEVER, Job
from taskmq.worker.news import News
from taskmq.worker.outage import Outage

if TYPE_CHECKING:
    from taskmq.worker.pools import Pool

log = logging.getLogger("taskmq.worker")

PER_LEASE = 3
"""Heartbeats in one lease."""
LONGEST_PAUSE = 1.0
"""Seconds until the next try while the store fails."""
LOOK = 0.5
"""Seconds between two looks for handlers that have used up their timeout or told their progress."""
NEWS = 0.9
"""Seconds between two messages about one task's progress; a little less than two looks."""


class Heartbeat:
    """Extends every lease in ``ledger`` and writes the worker's row (``row`` makes it)."""

    def __init__(
        self,
        store: Transport,
        ledger: set[Job],
        pool: Pool,
        row: Callable[[], WorkerInfo],
        lease: int,
        news: News,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._pool = pool
        self._news = news
        self._row = row
        self._row_lease = lease
        self._shortest = lease
        self._row_due = 0.0
        self._last = monotonic()
        self._outage = Outage("heartbeat: the store", LONGEST_PAUSE, LONGEST_PAUSE)
        self._stopped = False
        self._bell = Bell()

    def notice(self, lease: int) -> None:
        """A lease of so many microseconds came in; a shorter one than before makes the heart beat faster."""
        if lease < self._shortest:
            self._bell.ring()

    def stop(self) -> None:
        """Let ``run`` return."""
        self._stopped = True
        self._bell.ring()

    # ── its own thread ──

    def run(self) -> None:
        """Beat until stopped."""
        while not self._stopped:
            self._pool.overdue(monotonic())  # first: a pool of processes learns here which tasks have started
            try:
                self._beat()
                self._outage.over()
                pause = min(max(0.0, self._last + self._period - monotonic()), LOOK)
            except TransportError as error:
                waiting = f"{len(self._ledger)} leases wait"
                pause = self._outage.failed(error, waiting, at_most=self._period / 2)
            self._bell.wait(pause)

    @property
    def _period(self) -> float:
        """Seconds between two heartbeats."""
        return self._shortest / 1e6 / PER_LEASE

    def _beat(self) -> None:
        now = monotonic()
        news = self._news.pending()  # before the jobs: whose job is not among them has ended, and is not yet to come
        jobs = list(self._ledger)
        self._shortest = min([self._row_lease, *(job.delivery.lease for job in jobs)])
        if now >= self._last + self._period or self._outage.failures:
            self._renew(jobs, now, news)
            self._last = now
        elif news:
            self._renew([job for job in jobs if id(job.delivery) in news and now - job.told >= NEWS], now, news)
        if news:
            alive = {id(job.delivery) for job in jobs}
            for key in news.keys() - alive:
                self._news.drop(key, news[key])
        if now >= self._row_due:
            self._store.heartbeat(self._row(), self._row_lease)
            self._row_due = now + self._row_lease / 1e6 / PER_LEASE

    def _renew(self, jobs: list[Job], sent: float, news: dict[int, Progress]) -> None:
        """Also what has ended and could not be settled yet: its outcome must not be lost to a store that was full."""
        if not jobs:
            return
        items = [Renewal(job.delivery, job.started > 0, news.get(id(job.delivery))) for job in jobs]
        answers = self._store.extend(Extend(items=items))
        for job, item, answer in zip(jobs, items, answers, strict=True):
            if item.progress is not None:
                job.told = sent
                self._news.drop(id(job.delivery), item.progress)
            self._renewed(job, answer, sent)

    def _renewed(self, job: Job, answer: Renewed, sent: float) -> None:
        if job.outcome is not None:
            return  # it ended meanwhile; that its lease is gone may be because it has been settled
        if answer.lease_until is None:
            self._lost(job)
        elif answer.cancel:
            job.usable_until = NEVER
            if job.started:
                self._pool.cancel(job)
        else:
            job.delivery.lease_until = answer.lease_until
            job.usable_until = min(sent + job.delivery.lease / 1e6, job.start_by)

    def _lost(self, job: Job) -> None:
        if job.lost:
            return
        job.lost = True
        job.usable_until = NEVER
        what = "while it ran; it is told to stop" if job.started else "before it was started"
        delivery = job.delivery
        log.warning("task %s (%s, epoch %d): LeaseLost %s", delivery.id, delivery.handler, delivery.epoch, what)
        if job.started:
            self._pool.cancel(job)


__all__ = ["Heartbeat"]
