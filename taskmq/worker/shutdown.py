"""The end of a worker, as the fetch loop sees it: withdraw, wait, give up. The whole order is told in ``worker.py``."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import NEVER
from taskmq.worker.settling import Settling

if TYPE_CHECKING:
    from taskmq.worker.pools import Pool

log = logging.getLogger("taskmq.worker")

LAST_MOMENT = 0.2
"""Seconds between telling a handler to stop and giving it up or killing its process: it may still end by itself."""
PATIENCE = 2.0
"""Seconds that a store which does not answer may hold up the exit once everything has been given up."""


class Shutdown:
    """From ``ask`` on, each ``step`` does what is due and ``over`` tells when nothing is left to do."""

    def __init__(self, desk: Desk, settling: Settling, pool: Pool, grace: float) -> None:
        self.asked = False
        self._desk = desk
        self._settling = settling
        self._pool = pool
        self._grace = grace
        self._grace_end = float("inf")
        self._begun = False

    def ask(self, grace: float | None = None) -> None:
        """Begin, or hurry: an earlier end of grace wins. From any thread, also in a signal handler."""
        self._grace_end = min(self._grace_end, monotonic() + (self._grace if grace is None else grace))
        self._desk.closed = True  # from this moment nothing starts, even what a reserve under way still brings
        self.asked = True
        self._desk.wake()

    @property
    def latest_end(self) -> float:
        """When everything must be over, if the store answers at all."""
        return self._grace_end + LAST_MOMENT + PATIENCE

    def step(self, now: float) -> None:
        """Withdraw what has not been started; once grace is over, cancel what runs, and a moment later give it back."""
        if not self._begun:
            self._begun = True
            log.info("stopping: %d running, %d held go back", self._running(), self._desk.held())
            self._desk.close()
            self._pool.withdraw()
        self._settling.give_back(self._desk.take_back_all())
        self._refuse_marks()
        if now >= self._grace_end:
            self._cancel()
        if now >= self._grace_end + LAST_MOMENT:
            self._give_up()

    def over(self, now: float, hopeless: bool) -> bool:
        """Whether the loop may end: all settled, or nothing runs and the store will not take the rest.

        ``hopeless``: the store refuses for good (it is closed), so waiting for it is in vain.
        """
        if not self._settling.ledger:
            return True
        if self._settling.in_hand or not (hopeless or now >= self.latest_end):
            return False
        log.warning(
            "%d outcomes could not be settled: the store does not take them. Their leases end by themselves",
            len(self._settling.ledger),
        )
        return True

    def next_time(self, now: float) -> float:
        """When ``step`` or ``over`` will have something new to say, if nothing else happens."""
        times = (self._grace_end, self._grace_end + LAST_MOMENT, self.latest_end)
        return min((time for time in times if time > now), default=now + PATIENCE)

    def _running(self) -> int:
        return sum(job is not None for job in self._desk.running)

    def _refuse_marks(self) -> None:
        """Last attempts that wait to be marked are not started any more; their threads hand them back."""
        while self._desk.marks:
            job = self._desk.marks.popleft()
            job.usable_until = NEVER
            self._desk.let_go(job)

    def _cancel(self) -> None:
        for job in self._desk.running:
            if job is not None:
                self._pool.cancel(job)

    def _give_up(self) -> None:
        running = [job for job in self._settling.ledger if job.started and job.outcome is None]
        for job in running:
            log.warning("task %s (%s) still runs: given back", job.delivery.id, job.delivery.handler)
        self._pool.abandon()
        self._settling.give_up(running)


__all__ = ["LAST_MOMENT", "Shutdown"]
