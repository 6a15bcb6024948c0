"""N coroutines on one event loop thread, and a thread for each plain function among them.

The loop takes jobs from the desk by itself, without a thread for each. At most one *runner*, an asyncio task, looks for
jobs at a time: it runs one after another as long as they do not wait for anything (``drive.py`` tells how), and when
one waits, another runner takes over the looking. There is no runner while all places are taken or the desk is empty;
in the second case the pool is *parked* at the desk like a thread, and the next batch of jobs wakes the loop, once.
After a few milliseconds a runner lets the others on the loop have their turn.

Plain functions would block the loop and all coroutines with it. They run in threads of their own, started when they
are first needed; each takes a place like a coroutine, so there are never more than ``concurrency`` of both together. A
coroutine that blocks delays its neighbours, and loses no lease: the heartbeat is not on the loop.

What other threads have to say (a job was marked, a plain function has ended) lies in the ``Mailbox``, and the loop
is called once for as much as lies there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Semaphore
from time import monotonic
from typing import TYPE_CHECKING

from taskmq.outcome import Outcome
from taskmq.worker.drive import Drive
from taskmq.worker.executor import Execution, Executor
from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Job
from taskmq.worker.mailbox import Mailbox
from taskmq.worker.pools.base import Pool
from taskmq.worker.pools.threads import run
from taskmq.worker.settling import YIELD

if TYPE_CHECKING:
    from taskmq.worker.fetch import Fetch
    from taskmq.worker.loop import LoopThread
    from taskmq.worker.service import Services

log = logging.getLogger("taskmq.worker")

SLICE = 0.002
"""Seconds that jobs which never wait may have the loop for themselves."""

Found = tuple[int, Job]
"""A job and the place it has."""


class AsyncioPool(Pool):
    """Runs jobs on the worker's event loop. Everything is the loop's own but ``_mail``."""

    def __init__(self, desk: Desk, executor: Executor, loop: LoopThread) -> None:
        super().__init__(desk, executor)
        self._thread = loop
        self._free = list(reversed(range(len(desk.running))))
        self._looking = False
        self._mail: Mailbox[tuple[int, Job | None]] = Mailbox(self._wake)
        """Places with the job to go on with, or with None: the place is free."""
        self._runners: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly only

    def start(self, services: Services, fetch: Fetch, ended: Callable[[], None]) -> None:
        """Start the loop's thread, and have it look for jobs."""
        self._functions = _Functions(services, self._run_function)
        self._loop = self._thread()
        self._mail.ring()

    def stop(self) -> None:
        """Let the threads of plain functions go. The loop is the worker's, who stops it."""
        self._functions.stop()

    # ── from any thread ──

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._listen)
        except RuntimeError:  # the loop is closed
            pass

    # ── on the loop ──

    def _listen(self) -> None:
        self._mail.opened()
        self._go_on()

    def _go_on(self) -> None:
        """See to it that somebody looks for jobs, if there may be any that can start."""
        open_ = self._free and not self._mail.parked and not self._desk.closed
        if not self._looking and (self._mail.letters or open_):
            self._looking = True
            runner = self._loop.create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        """The life of a runner."""
        try:
            waiting = await self._run_short_ones()
        finally:
            self._looking = False
            self._go_on()
        if waiting is None:
            return
        place, job, drive = waiting
        self._end(place, job, await drive.rest(job.started))
        self._go_on()

    async def _run_short_ones(self) -> tuple[int, Job, Drive] | None:
        """Run jobs until none is left, or one waits for something."""
        this = asyncio.current_task()
        assert this is not None
        until = monotonic() + SLICE
        while (found := self._next()) is not None:
            place, job = found
            drive = self._begin(place, job)
            if drive is not None:
                return place, job, drive
            if this.cancelling():  # the handler's doing; who comes next must not have to suffer it
                return None
            if job.ended > until:
                await asyncio.sleep(0)
                until = monotonic() + SLICE
        return None

    def _next(self) -> Found | None:
        """The next job and its place; None when there is none or no place."""
        letters = self._mail.letters
        while letters:
            place, job = letters.popleft()
            if job is not None:
                return place, job
            self._free.append(place)
        while self._free and not self._desk.closed:
            job = self._desk.look()
            if job is not None:
                return self._free.pop(), job
            if self._mail.park(self._desk):
                return None
        return None

    def _begin(self, place: int, job: Job) -> Drive | None:
        """Start a job; the drive if it waits for something. Never raises."""
        now = monotonic()
        if not job.startable(now):  # also what the store has refused to mark
            self._end(place, job, YIELD)
            return None
        if not job.cleared:
            self._desk.send_mark(job, self._mail.gate((place, job)))
            return None
        try:
            task = self._executor.handler(job.delivery)
            if task is not None and not task.is_coroutine:
                self._functions.run(place, job)
                return None
            job.started = now
            self._desk.running[place] = job
            return self._step(place, job)
        except BaseException as error:
            self._end(place, job, self._executor.broken(job.delivery, error))
            return None

    def _step(self, place: int, job: Job) -> Drive | None:
        """The first step of a coroutine; or the end of what has no handler, or arguments that do not fit."""
        attempt = self._executor.prepare(job.delivery)
        if type(attempt) is not Execution:
            self._end(place, job, attempt)  # type: ignore[arg-type]
            return None
        drive = Drive(self._executor, attempt, self._loop)
        ended = drive.begin()
        if ended is None:
            return drive
        self._end(place, job, ended)
        return None

    def _end(self, place: int, job: Job, outcome: Outcome) -> None:
        """Return a job. The next of its run has the place, or the place is free."""
        job.ended = monotonic()
        self._desk.running[place] = None
        following = self._desk.done(job, outcome)
        if following is None:
            self._free.append(place)
        else:
            self._mail.letters.append((place, following))

    # ── in threads of plain functions ──

    def _run_function(self, place: int, job: Job) -> None:
        self._mail.put((place, run(job, self._desk, self._executor, place)))


class _Functions:
    """Threads for plain functions, as many as ever ran at once."""

    def __init__(self, services: Services, target: Callable[[int, Job], None]) -> None:
        self._services = services
        self._target = target
        self._jobs: SimpleQueue[Found | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._count = 0

    def run(self, place: int, job: Job) -> None:
        """Run it in a thread that is idle, or in a new one; raises RuntimeError when there are no threads to be had."""
        if not self._idle.acquire(blocking=False):
            self._services.start(f"handler-{self._count}", self._serve)
            self._count += 1
        self._jobs.put((place, job))

    def stop(self) -> None:
        """Let all of them go."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (found := self._jobs.get()) is not None:
            self._target(*found)
            self._idle.release()


__all__ = ["AsyncioPool"]
