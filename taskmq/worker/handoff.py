"""The desk between the thread that talks to the store (*fetch*) and the threads that run handlers.

Going out, jobs lie in ten deques, one a priority; a handler thread takes the first of the highest that is not empty.
Coming back, ended jobs lie in one deque of outcomes. There is no lock around any of this: ``append``, ``popleft`` and
``pop`` of a deque are atomic, so *whoever pops a job owns it*, and that is the whole rule. A handler thread pops
from the left to run it, the fetch thread pops from the right to hand it back.

Threads that have nothing to do *park*: each has a lock of its own, which it holds and tries to take once more. To
wake it, somebody takes that lock out of ``_parked`` and releases it. So each release belongs to exactly one park,
and no thread is woken for nothing. Why no wake-up is lost:

* The handler thread looks for a job, *then* enters its lock in ``_parked``, *then looks again*, and only then blocks.
* The fetch thread appends the job first and looks into ``_parked`` afterwards.

Whatever the interleaving, either the fetch thread sees the lock or the handler thread sees the job. If the second look
finds a job and the lock has already been taken out of ``_parked``, its release is on its way; the thread must wait for
it, or the next park would end at once (a stale release).

The fetch thread sleeps on one lock used as a binary semaphore, and says in ``_need`` how many outcomes are worth waking
up for: it writes ``_need``, *then* counts; the handler thread appends, *then* reads ``_need``. Again one of them sees
the other. The one who wakes it sets ``_need`` out of reach first, so that the others do not release what is released.

Rejected: ``queue.Queue`` and ``SimpleQueue`` (no priorities; the first costs 0.9 µs a task), a Condition (every wake
goes through two locks, and threads wake for nothing), ``concurrent.futures`` (28 % of the throughput).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock

from taskmq.names import MAX_PRIORITY
from taskmq.outcome import Ack, Outcome
from taskmq.worker.bell import Bell
from taskmq.worker.jobs import Hand, Job, Run

OUT_OF_REACH = sys.maxsize
"""A number of outcomes that never come together: sleep whatever comes."""


class Desk:
    """Jobs out, outcomes back. ``running[i]`` is what handler thread ``i`` runs now, or None."""

    def __init__(self, handlers: int) -> None:
        self.places = handlers
        """How many jobs could run at once now; a pool whose processes come and go changes it."""
        self.running: list[Job | None] = [None] * handlers
        self.outcomes: deque[Job] = deque()
        self.marks: deque[Job] = deque()
        """Jobs on their last attempt, about to start: the store must know before they do."""
        self.cleared: deque[Job] = deque()
        """Marked jobs that no thread is waiting for; they go before all others."""
        self.closed = False
        self._by_priority: tuple[deque[Job], ...] = tuple(deque() for _ in range(MAX_PRIORITY + 1))
        self._bands = self._by_priority[::-1]
        self._parked: deque[Hand] = deque()
        self._runs: list[Run] = []
        self._need = OUT_OF_REACH
        self._eager = False
        self._bell = Bell()

    # ── the fetch thread puts ──

    def put(self, heads: list[Job], runs: list[Run], wake: int) -> None:
        """Offer jobs, in order, and wake ``wake`` threads. Of a run, only its head is offered."""
        if runs:
            self._runs = [run for run in self._runs if run.rest] + runs
        bands = self._by_priority
        for job in heads:
            bands[job.band].append(job)
        self._release(wake)

    def call_hands(self) -> None:
        """Wake as many threads as there are jobs to take."""
        self._release(self.offered())

    def _release(self, count: int) -> None:
        parked = self._parked
        with suppress(IndexError):
            for _ in range(count):
                parked.pop().release()  # the one that parked last is the warmest

    # ── handler threads take and return ──

    def take(self, own: Lock) -> Job | None:
        """The next job; blocks until there is one. None when the desk is closed.

        ``own`` is the calling thread's lock, which it holds at entry and at exit.
        """
        while not self.closed:
            job = self.look()
            if job is not None:
                return job
            self._parked.append(own)
            job = self.look()
            if job is None and not self.closed:
                if self._eager and self.outcomes:
                    self.wake()
                own.acquire()
                continue
            try:
                self._parked.remove(own)
            except ValueError:
                own.acquire()  # already taken out to be released: that release is ours
            if job is not None:
                return job
        return None

    def park(self, hand: Hand) -> bool:
        """Have ``hand`` released once there is a job, for a pool that must not block.

        False: there is one already, and nobody will be released for it. What is parked in a closed desk stays so.
        """
        self._parked.append(hand)
        if not self.waiting():
            if self._eager and self.outcomes:
                self.wake()
            return True
        try:
            self._parked.remove(hand)
        except ValueError:
            return True  # it is being released
        return False

    def put_back(self, jobs: list[Job]) -> None:
        """Offer again, in this order and before all others of their bands, what was taken and has not been started."""
        for job in reversed(jobs):
            self._by_priority[job.band].appendleft(job)
        self._release(len(jobs))

    def look(self) -> Job | None:
        """The next job, if there is one."""
        if self.cleared:
            return self.cleared.popleft()
        for band in self._bands:
            if band:
                try:
                    return band.popleft()
                except IndexError:  # another thread was faster
                    continue
        return None

    def waiting(self) -> bool:
        """Whether a job could be taken now."""
        return bool(self.cleared) or any(self._bands)

    def offered(self) -> int:
        """How many jobs could be taken now."""
        return len(self.cleared) + sum(map(len, self._bands))

    def done(self, job: Job, outcome: Outcome) -> Job | None:
        """Return an ended job; answers the next of its run when this thread is to go on with that one."""
        job.outcome = outcome
        outcomes = self.outcomes
        outcomes.append(job)
        if len(outcomes) >= self._need:
            self.wake()
        return None if job.run is None else self._next_of(job.run, outcome)

    def end(self, job: Job, outcome: Outcome) -> None:
        """Return an ended job; the next of its run is offered to whoever has time for it."""
        following = self.done(job, outcome)
        if following is not None:
            self.put_back([following])

    def _next_of(self, run: Run, outcome: Outcome) -> Job | None:
        """After an Ack the next of a run may start without waiting for the settle: outcomes are settled in order.

        After anything else the fetch thread hands the rest back. More urgent jobs go first, also before a follower.
        """
        if type(outcome) is not Ack or run.broken or self.closed:
            return None
        try:
            job = run.rest.popleft()
        except IndexError:
            return None
        if not any(self._bands[: MAX_PRIORITY - job.band]):
            return job
        self._by_priority[job.band].appendleft(job)
        self._release(1)
        if self.closed:
            self.wake()  # closed in this very moment: the fetch thread may have looked here already
        return None

    def ask_mark(self, job: Job, own: Lock) -> None:
        """Have a last attempt marked in the store, and wait for it; the job is then cleared, or not startable any more.

        The thread waits instead of running something else meanwhile: a job that is marked and not running would be
        blamed for a crash it had no part in.
        """
        self.send_mark(job, own)
        own.acquire()

    def send_mark(self, job: Job, hand: Hand) -> None:
        """The same for a pool that must not block: ``hand`` is released when the answer is known."""
        job.gate = hand
        self.marks.append(job)
        self.wake()

    def let_go(self, job: Job) -> None:
        """The answer to ``ask_mark`` is known: start or refuse it now."""
        gate, job.gate = job.gate, None  # a gate may hold its job, and the collector does not look into jobs
        if gate is None:
            self.cleared.append(job)
        else:
            gate.release()

    def close(self) -> None:
        """No job starts any more; parked threads return."""
        self.closed = True
        self._release(len(self.running))

    # ── the fetch thread takes back ──

    def held(self) -> int:
        """How many jobs nobody has started."""
        return self.offered() + sum(len(run.rest) for run in self._runs)

    def oldest(self) -> list[float | None]:
        """When the first job of each band was claimed, highest priority first."""
        return [_claimed(band) for band in self._bands]

    def oldest_held(self) -> float | None:
        """When the job that is held longest was claimed."""
        times = [_claimed(line) for line in (*self._bands, *(run.rest for run in self._runs)) if line]
        return min((time for time in times if time is not None), default=None)

    def take_back(self, first_band: int = 0) -> list[Job]:
        """Take back what is held from this band (0: the highest) downwards, last first: so it goes back in order."""
        back: list[Job] = []
        for band in reversed(self._bands[first_band:]):
            for job in _from_the_right(band):
                back += self.take_back_run(job)
                back.append(job)
        return back

    def take_back_all(self) -> list[Job]:
        """Take back everything nobody has started, last first."""
        back = self.take_back()
        for run in self._runs:
            back += _from_the_right(run.rest)
        back += _from_the_right(self.cleared)
        self._runs = []
        return back

    def take_back_run(self, job: Job) -> list[Job]:
        """Take back what is left of this job's run, last first."""
        return [] if job.run is None else list(_from_the_right(job.run.rest))

    def take_back_followers(self, claimed_before: float) -> list[Job]:
        """Take back the followers, of whatever run, that have waited since then."""
        if not self._runs:
            return []
        back: list[Job] = []
        for run in self._runs:
            since = _claimed(run.rest)
            if since is not None and since < claimed_before:
                back += _from_the_right(run.rest)
        self._runs = [run for run in self._runs if run.rest]
        return back

    # ── the fetch thread sleeps ──

    def sleep(self, need: int, timeout: float | None, *, eager: bool = False) -> bool:
        """Sleep until ``need`` outcomes lie here or somebody calls ``wake``; False when the time (seconds) is over.

        ``eager``: a thread that has nothing to do is a reason to wake up, too, if there is any outcome at all.
        """
        self._need = need
        self._eager = eager
        outcomes = self.outcomes
        woken = len(outcomes) >= need or (eager and bool(outcomes) and bool(self._parked) and not self.waiting())
        if not woken:
            woken = self._bell.wait(timeout)
        self._need = OUT_OF_REACH
        self._eager = False
        return woken

    def wake(self) -> None:
        """Wake the fetch thread, or let its next sleep end at once."""
        self._need = OUT_OF_REACH
        self._bell.ring()


def _claimed(line: deque[Job]) -> float | None:
    try:
        return line[0].claimed
    except IndexError:
        return None


def _from_the_right(line: deque[Job]) -> Iterator[Job]:
    try:
        while True:
            yield line.pop()
    except IndexError:
        return


__all__ = ["OUT_OF_REACH", "Desk"]
