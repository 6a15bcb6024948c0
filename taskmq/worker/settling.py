"""How deliveries end: outcomes are collected in order, kept until the store has answered, and counted.

Only the fetch loop calls this. ``ledger`` holds every job from its reserve until its settle is answered, whatever
state it is in; the heartbeat reads it from another thread (copying a set is one atomic step).

Order matters in one place. The tasks of a run are settled in the order they were executed, and when one of them ends
in anything but an Ack, the not-started rest goes back in the same settle: after the outcome of the one that ended
(which has already put the rest back, if the model says so; then these yields answer False and that is fine), or, if
that one was not started either, before it, so that everything goes back last first.
"""

from __future__ import annotations

import logging

from taskmq.outcome import Ack, Dead, Defer, Outcome, Retry, Yield
from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Job
from taskmq.worker.prefetch import BRISK, LONGEST_GAP, smooth
from taskmq.worker.stats import Stats

log = logging.getLogger("taskmq.worker")

YIELD = Yield()
STOPPED = "the worker stopped before the task had ended"


class Settling:
    """Outcomes on their way to the store.

    ``pending``   jobs with an outcome that the store has not confirmed, in order
    ``run_time``  average seconds of recent runs, None before the first
    ``gap``       average seconds between recent outcomes, None before the second
    ``brisk``     share of recent runs that were too short to have waited for anything
    """

    def __init__(self, desk: Desk, stats: Stats) -> None:
        self.ledger: set[Job] = set()
        self.pending: list[Job] = []
        self.run_time: float | None = None
        self.gap: float | None = None
        self.brisk: float | None = None
        self._last_end = 0.0
        self._desk = desk
        self._stats = stats

    @property
    def in_hand(self) -> int:
        """Jobs held or running: what is only waiting to be settled does not count."""
        return len(self.ledger) - len(self.pending)

    def collect(self) -> int:
        """Take the outcomes that handler threads have left; answers how many handlers have ended."""
        outcomes = self._desk.outcomes
        count = len(outcomes)
        if not count:
            return 0
        jobs = [outcomes.popleft() for _ in range(count)]
        for job in jobs:
            if job.run is None and not job.given_up and not job.lost:
                self.pending.append(job)
            else:
                self._collect_special(job)
        return self._learn(jobs)

    def _collect_special(self, job: Job) -> None:
        """A job of a run, one that was lost before it was started, or one whose worker is going down."""
        if job.given_up:
            return  # given back while it was still running: the late result is nobody's any more
        if job.lost and not job.started:
            self.ledger.discard(job)
            self._stats.lost += 1
        rest = [] if isinstance(job.outcome, Ack) else self._desk.take_back_run(job)
        ended = [job] if job in self.ledger else []
        if isinstance(job.outcome, Yield):
            self.give_back(rest)
            self.pending += ended
        else:
            self.pending += ended
            self.give_back(rest)

    def _learn(self, jobs: list[Job]) -> int:
        """Note run times and how close together outcomes come."""
        ran = [job.ended - job.started for job in jobs if job.started]
        if not ran:
            return 0
        count = len(ran)
        self.run_time = smooth(self.run_time, sum(ran) / count, count)
        self.brisk = smooth(self.brisk, sum(time < BRISK for time in ran) / count, count)
        end = max(jobs[-1].ended, self._last_end)
        if self._last_end:
            self.gap = smooth(self.gap, min((end - self._last_end) / count, LONGEST_GAP), count)
        self._last_end = end
        self._stats.started += count
        return count

    def give_back(self, jobs: list[Job]) -> None:
        """Hand back jobs nobody has started, in this order."""
        for job in jobs:
            job.outcome = YIELD
        self.pending += jobs

    def give_up(self, jobs: list[Job]) -> None:
        """Give back jobs that still run; what their handlers answer later is dropped."""
        for job in jobs:
            job.given_up = True
            job.outcome = given_up(job)
        self.pending += jobs

    def unanswered(self) -> None:
        """The settle of everything pending was sent, and no answer came."""
        for job in self.pending:
            job.unsure = True

    def answered(self, jobs: list[Job], answers: list[bool]) -> None:
        """The store has settled these, the first ones pending."""
        del self.pending[: len(jobs)]
        self.ledger.difference_update(jobs)
        if all(answers):
            self._count(jobs)
            return
        for job, settled in zip(jobs, answers, strict=True):
            if settled or isinstance(job.outcome, Yield):  # a refused yield has gone back with the head of its run
                self._count([job])
            else:
                self._refused(job)

    def _count(self, jobs: list[Job]) -> None:
        stats = self._stats
        for job in jobs:
            kind = type(job.outcome)
            if kind is Ack:
                stats.succeeded += 1
            elif kind is Yield:
                stats.handed_back += 1
            elif kind is Defer:
                stats.deferred += 1
            elif kind is Retry:
                stats.retried += 1
                stats.failed += 1
            elif kind is Dead:
                stats.dead += 1
                stats.failed += 1

    def _refused(self, job: Job) -> None:
        """The store knew this delivery no more. Never sent again; nothing else of its run may start."""
        if job.unsure:
            log.info("task %s: settled before, or its lease was lost (the first answer was lost)", job.delivery.id)
            return
        self._stats.lost += 1
        log.warning(
            "task %s (%s, epoch %d): LeaseLost: its outcome was refused, the task had moved on",
            job.delivery.id,
            job.delivery.handler,
            job.delivery.epoch,
        )
        if job.run is not None:
            job.run.broken = True
            self.give_back(self._desk.take_back_run(job))


def given_up(job: Job) -> Outcome:
    """How a started job ends when its worker cannot wait any longer: run again at once, or dead on its last attempt."""
    if job.delivery.attempt >= job.delivery.max_attempts:
        return Dead("max_attempts", error=STOPPED)
    return Retry(0, error=STOPPED)


__all__ = ["STOPPED", "YIELD", "Settling", "given_up"]
