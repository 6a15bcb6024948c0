"""One task at a time, on the fetch loop's own thread: no hand-over between threads, the fewest surprises.

While a handler runs here, nobody turns the fetch loop. For a short one that is right, it is what makes solo cheap. A
long one must not hold back jobs past 20 ms, nor keep a shutdown from handing back and giving up. So there is a
*deputy*: when one handler has been running for 10 ms, it takes the loop's ``turn`` and keeps it going until that
handler ends. It polls while there is work and sleeps deeply while there is none: short tasks never pay for a wake-up.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from taskmq.worker.bell import Bell
from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Job
from taskmq.worker.pools.base import Pool
from taskmq.worker.pools.threads import run
from taskmq.worker.prefetch import COMPANY

if TYPE_CHECKING:
    from taskmq.worker.executor import Executor
    from taskmq.worker.fetch import Fetch
    from taskmq.worker.service import Services

LONG = 0.010
"""Seconds after which a running handler counts as long; also the deputy's polling interval."""
QUIET_POLLS = 100
"""Polls without any work after which the deputy sleeps until it is woken."""


class SoloPool(Pool):
    """Runs jobs between the turns of the fetch loop."""

    def __init__(self, desk: Desk, executor: Executor) -> None:
        super().__init__(desk, executor)
        self._served = 0
        self._busy = False
        self._asleep = False
        self._over = False
        self._bell = Bell()

    def start(self, services: Services, fetch: Fetch, ended: Callable[[], None]) -> None:
        """Start the deputy."""
        services.start("deputy", lambda: self._deputise(fetch, ended))

    def serve(self, fetch: Fetch) -> None:
        """Turn the fetch loop, and run what it brings, by turns."""
        while not fetch.over:
            with fetch.turn:
                if not fetch.over:
                    fetch.step(self._desk.waiting)
            self._work()
        self._over = True
        self._bell.ring()

    def _work(self) -> None:
        """Run jobs until none is left or the first outcome has waited long enough."""
        if not self._desk.waiting():
            return
        self._busy = True
        if self._asleep:
            self._bell.ring()
        self._run_some()
        self._busy = False

    def _run_some(self) -> None:
        until: float | None = None
        job = self._next(None)
        while job is not None:
            following = run(job, self._desk, self._executor, 0)
            self._served += 1
            if until is None:
                until = job.ended + COMPANY
            elif job.ended > until and following is None:
                return
            job = self._next(following)

    def _next(self, following: Job | None) -> Job | None:
        """The next job to run; one that must be marked in the store first goes there, and comes back cleared."""
        if self._desk.closed and following is None:
            return None
        job = following or self._desk.look()
        if job is not None and not job.cleared and job.startable(monotonic()):  # too late: run returns it
            self._desk.marks.append(job)
            return None
        return job

    # ── the deputy's thread ──

    def _deputise(self, fetch: Fetch, ended: Callable[[], None]) -> None:
        quiet = served = 0
        while not self._over:
            if quiet >= QUIET_POLLS:
                self._sleep()
                quiet = 0
            self._bell.wait(LONG)
            job = self._desk.running[0]
            if job is not None and monotonic() - job.started >= LONG:
                self._stand_in(fetch, job)
                if fetch.over:  # in our hands: the fetch thread is stuck in a handler that was given up
                    ended()
                    return
            quiet = quiet + 1 if job is None and self._served == served else 0
            served = self._served

    def _sleep(self) -> None:
        """Sleep until there is work. It says so first and looks afterwards; ``_work`` does it the other way round."""
        self._asleep = True
        if not self._busy and not self._over:
            self._bell.wait()
        self._asleep = False

    def _stand_in(self, fetch: Fetch, job: Job) -> None:
        """Keep the loop turning while this job runs."""

        def has_ended() -> bool:
            return self._desk.running[0] is not job

        with fetch.turn:
            while not has_ended() and not fetch.over:
                fetch.step(has_ended)


__all__ = ["SoloPool"]
