"""Child processes that run handlers: several interpreters at once, hard timeouts, and crashes that cost one task.

::

    desk ──► CHILDREN thread ──batches──► child 1: runs one task after another ──► black box 1 ─┐
      ▲          │  ▲       ──batches──► child 2                              ──► black box 2 ─┤
      └─outcomes─┘  └───────────────────── outcomes, at the end of a batch or after 2 ms ───────┘

One thread of the worker, *children*, speaks with all child processes over socket pairs and with nobody else: it takes
jobs from the desk like a handler thread and returns their outcomes to it. Fetching, settling, leases and shutdown are
what they are for the other pools.

Which child gets how many jobs is decided in ``dispatch.py``, timeouts and cancels are enforced by ``enforcement.py``,
and children are started and replaced by ``nursery.py``; here is the thread that calls them, and what children say.

What is authoritative. ``Child.flying`` holds every job that was sent and has not come back; only this thread changes
it. Numbers name jobs, and grow over all children. Which job a child runs stands in its *black box* (``blackbox.py``),
memory that the child shares with us and that survives it.

Why a black box. The worker must know which task was running when a child dies, and must not lose the outcomes of those
that had ended before it. A message at each start and each end would tell, for two system calls and a wake-up of this
process a task, more than a short task costs; a batch of outcomes sent at its end loses them all to a segfault in its
last task. Written into shared memory, both cost a microsecond and survive anything but the machine.

How much a child has. At most two batches of at most 10 ms by the forecast, so that it never waits for us; one job alone
when they take longer. As at the desk the limit is a clock: what has waited for 20 ms in a child is taken back
(``TakeBack``; the child's reader thread answers what it has popped from the tail of its deque) and offered to the
others, and the fetch loop hands it back to the store if none of them is free. One limit remains: a handler that holds
the interpreter lock for long, in C code that does not release it, also holds up the answer.

Death. The end of a child shows as the end of its socket, or on its pidfd where something that it forked keeps the
socket open. Then, in this order: what the socket still holds, what the black box holds, then the verdict. The job that
was running fails by its retry policy – that is the one attempt a crash may cost –, everything else that flew goes back
to the desk, in order, blamed for nothing.

Force. A timeout ends a process, and must end it in the right task. Between our look into the box and our SIGKILL the
child may end that task and begin the next. So it is *frozen* first (SIGSTOP), then we look, then it is killed or
thawed. One that does not stop within 50 ms, since it hangs in the kernel, is thawed and tried again a moment later. A
coroutine has a second longer than its timeout, since its own event loop ends it, with a traceback; should it block, it
is killed like the others. A cancel tells the handler first (``current().cancelled``, CancelledError), and kills 0.2 s
later.

Recycling. A child that has run ``max_tasks`` tasks, or that has more than ``max_memory`` in memory after a batch, is
replaced. Its successor is started ahead and stands by, so there is no gap: with half of its tasks left, or when it has
become too large (it then works on until the successor is there). It never runs more than ``max_tasks``, and never are
more than ``concurrency`` tasks running.

Credentials. We send no URL and nothing of the store. A child imports the app, which then has its URL as the worker's
own process had it (usually from the environment, which children inherit like everything else that is started). It opens
the store at the first use, which comes if a handler enqueues or looks something up; handlers that do not never connect.

Hooks. before_run, after_run, failed and dead fire in the child, where the handler runs; for a task whose child died
they fire here. worker_start and worker_stop fire here with the Worker, and in each child with a ``ChildWorker``: a
connection that handlers use must be opened where they run.

Rejected: ``multiprocessing.Pool`` and ``concurrent.futures`` (a broken child breaks the executor, and neither tells
which task did it; pickle); forking (threads hold locks); a socket to the store in each child (N times the connections,
and nobody left to renew the lease of a task that blocks).
"""

from __future__ import annotations

import logging
import os
import selectors
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from taskmq.worker import frames
from taskmq.worker.children import Child, Slot
from taskmq.worker.dispatch import Dispatch
from taskmq.worker.enforcement import Enforcement
from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import NEVER, Job
from taskmq.worker.mailbox import Mailbox
from taskmq.worker.nursery import Nursery
from taskmq.worker.pools.base import Pool
from taskmq.worker.prefetch import COMPANY, HOLD
from taskmq.worker.settling import YIELD

if TYPE_CHECKING:
    from threading import Thread

    from taskmq.worker.executor import Executor
    from taskmq.worker.fetch import Fetch
    from taskmq.worker.news import News
    from taskmq.worker.service import Services

log = logging.getLogger("taskmq.worker")

LOOK = 0.003
"""Seconds between two looks at children that have more than they run."""
LEAVING = 5.0
"""Seconds that children have to leave when the worker stops, for their hooks ``worker_stop``; then they are killed."""
ANSWERS = 0.05
"""Seconds that the children have to return what they hold when the worker stops, before it goes back without theirs."""


class ProcessesPool(Pool):
    """Runs jobs in child processes. ``hello`` is the first frame each of them gets."""

    def __init__(
        self,
        desk: Desk,
        executor: Executor,
        hello: Callable[[], frames.Hello],
        news: News,
        max_tasks: int | None,
        max_memory: int | None,
    ) -> None:
        super().__init__(desk, executor)
        self._news = news
        self._selector = selectors.DefaultSelector()
        self._nursery = Nursery(desk, executor, hello, self._selector, max_tasks, max_memory)
        self._nursery.on_line, self._nursery.on_death = self._on_line, self._on_death
        self._pipe = (-1, -1)
        self._mail: Mailbox[Callable[[], None]] = Mailbox(self._wake)
        self._dispatch = Dispatch(desk, self._nursery, self._mail, max_tasks)
        self._force = Enforcement(executor)
        self._withdrawing = False
        self._awaited: set[Child] = set()
        self._await_until = 0.0
        self._returned: dict[int, Job] = {}
        self._over = False
        self._thread: Thread | None = None
        self._end_at = 0.0

    def start(self, services: Services, fetch: Fetch, ended: Callable[[], None]) -> None:
        """Start the children thread, which starts the children."""
        self._nursery.open()
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._mail.opened()  # what was rung before there was a pipe was not heard
        self._thread = services.start("children", self._serve)

    # ── from other threads ──

    def _wake(self) -> None:
        with suppress(OSError):  # full is as good as rung; closed: nobody listens any more
            os.write(self._pipe[1], b"\0")

    def cancel(self, job: Job) -> None:
        """Tell the handler, and end its process a moment later if it still runs."""
        self._mail.put(lambda: self._cancel(job))

    def overdue(self, now: float) -> None:
        """Timeouts are enforced here. What the heartbeat needs is who runs, and what they say of their progress."""
        for slot in self._nursery.slots:
            child = slot.child
            if child is None:
                continue
            number, at = child.process.box.started()
            flight = child.flying.get(number)
            if flight is None:
                continue
            job = flight.job
            if not job.started:
                job.started = at
            noted = child.process.box.noted()
            if noted is not None and noted.number == number and noted != child.noted:
                child.noted = noted
                self._news.tell(job.delivery, noted.progress)

    def withdraw(self) -> None:
        """Have all children return what they have not started."""
        self._withdrawing = True
        self._mail.put(self._withdraw)

    def abandon(self) -> None:
        """Kill every child that runs something: what is given back must not run in two places."""
        self._force.abandoned = True
        for slot in self._nursery.slots:
            if slot.child is not None and slot.child.flying:
                slot.child.process.kill()

    def stop(self) -> None:
        """Let the children leave; kill those that have not left in time."""
        self._end_at = monotonic() + LEAVING
        self._over = True
        self._mail.ring()
        if self._thread is not None:
            self._thread.join(LEAVING + 1.0)
        pipe, self._pipe = self._pipe, (-1, -1)
        for end in pipe:
            os.close(end)

    # ── the children thread ──

    def _serve(self) -> None:
        self._selector.register(self._pipe[0], selectors.EVENT_READ, self._listen)
        try:
            while not self._over:
                self._turn(monotonic())
                self._select(self._patience())
            self._farewell()
        finally:  # the worker stops when this thread dies; no child may outlive it, no job may hang
            self._collapse()
            self._selector.close()

    def _select(self, timeout: float | None) -> None:
        for key, events in self._selector.select(timeout):
            key.data(events)

    def _listen(self, events: int) -> None:
        with suppress(BlockingIOError):
            os.read(self._pipe[0], 4096)
        self._mail.opened()  # after the read, which would swallow the byte of whoever rings in between
        letters = self._mail.letters
        while letters:
            letters.popleft()()

    def _turn(self, now: float) -> None:
        """What does not announce itself, and what can be done now."""
        for slot in self._nursery.slots:
            child = slot.child
            if child is not None:
                self._observe(slot, child, now)
            if not self._withdrawing:
                self._nursery.tend(slot, now)
        if self._awaited and now >= self._await_until:
            self._awaited.clear()
            self._give_back()
        if not self._desk.closed:
            self._dispatch.dispatch(now)

    def _patience(self) -> float | None:
        """Seconds until there may be something to see without an event."""
        now = monotonic()
        times = [self._await_until] if self._awaited else []
        for slot in self._nursery.slots:
            child = slot.child
            if child is None:
                if slot.next is None:
                    times.append(slot.not_before)
                continue
            if child.deadline is not None:
                times.append(child.deadline)
            if len(child.flying) > 1 or (child.flying and child.running not in child.flying):
                times.append(now + LOOK)
        return max(0.0, min(times) - now) if times else None

    # ── who runs what ──

    def _observe(self, slot: Slot, child: Child, now: float) -> None:
        """Look into the box of a child that has jobs."""
        if not child.flying:
            return
        number, at = child.process.box.started()
        if number != child.running and number in child.flying:
            self._has_started(slot, child, number, at)
        if child.deadline is not None and now >= child.deadline:
            self._hear(slot, child, self._force.end(child))
            return
        if now - child.heard > COMPANY and not child.poked and len(child.flying) > 1:
            child.poked = True
            child.process.send(frames.frame(frames.Flush()))
        if not child.revoking and len(child.flying) > 1:
            waiting = next((flight.sent for key, flight in child.flying.items() if key != child.running), now)
            if now - waiting > HOLD:
                self._take_back(child)

    def _has_started(self, slot: Slot, child: Child, number: int, at: float) -> None:
        job = child.flying[number].job
        child.running = number
        job.started = at
        self._desk.running[slot.place] = job
        self._force.begun(child, job, at)
        if job.usable_until == NEVER:  # its lease was lost, or it was cancelled, while it was on its way
            self._force.cancel(child)

    def _cancel(self, job: Job) -> None:
        for slot in self._nursery.slots:
            child = slot.child
            if child is None:
                continue
            number, at = child.process.box.started()
            flight = child.flying.get(number)
            if flight is None or flight.job is not job:
                continue
            if child.running != number:
                self._has_started(slot, child, number, at)
            self._force.cancel(child)

    # ── what children say ──

    def _on_line(self, slot: Slot, child: Child, events: int) -> None:
        if child.dead:
            return
        if events & selectors.EVENT_WRITE:
            child.process.push()
            self._nursery.watch(slot, child)
        if events & selectors.EVENT_READ:
            said, more = child.process.receive()
            self._hear(slot, child, said)
            if not more:
                self._dead(slot, child)

    def _on_death(self, slot: Slot, child: Child, events: int) -> None:
        if not child.dead:
            self._hear(slot, child, child.process.receive()[0])
            self._dead(slot, child)

    def _hear(self, slot: Slot, child: Child, said: Iterable[Any]) -> None:
        """Take notice of what a child has said, in order."""
        child.heard = monotonic()
        child.poked = False
        count, time = 0, 0.0
        for message in said:
            if type(message) is frames.Ended:
                ran = self._ended(slot, child, message)
                if ran is not None:
                    count += 1
                    time += ran
            elif type(message) is frames.Returned:
                self._came_back(child, message.numbers)
            elif type(message) is frames.Ready:
                self._nursery.ready(slot, child, message)
            elif type(message) is frames.Failed:
                log.error("a child process cannot import the app: %s\n%s", message.error, message.traceback)
                self._nursery.complaint = message.error
        if count:
            self._dispatch.learn(time / count, count)

    def _ended(self, slot: Slot, child: Child, message: frames.Ended) -> float | None:
        """How long it ran; None if it was not started, or has been heard of before."""
        flight = child.flying.pop(message.number, None)
        if flight is None:
            return None  # told twice: once over the socket and once by the box
        job = flight.job
        child.distrust = False
        if message.number == child.running:
            child.deadline = child.verdict = None
            self._desk.running[slot.place] = None
        job.ended = message.ended
        ran = None
        if message.started:
            job.started = message.started
            ran = message.ended - message.started
        self._desk.end(job, message.outcome)
        return ran

    # ── taking back ──

    def _take_back(self, child: Child) -> None:
        child.revoking = child.distrust = True
        child.process.send(frames.frame(frames.TakeBack()))

    def _came_back(self, child: Child, numbers: list[int]) -> None:
        child.revoking = False
        back = {number: child.flying.pop(number).job for number in numbers if number in child.flying}
        child.count -= len(back)
        if not self._withdrawing:
            self._desk.put_back(list(back.values()))
            return
        self._returned |= back
        self._awaited.discard(child)
        if not self._awaited:
            self._give_back()

    def _withdraw(self) -> None:
        self._awaited = {slot.child for slot in self._nursery.slots if slot.child is not None and slot.child.flying}
        self._await_until = monotonic() + ANSWERS
        for child in self._awaited:
            self._take_back(child)

    def _give_back(self) -> None:
        """Return what has come back from all children: last first, as it was sent."""
        for number in sorted(self._returned, reverse=True):
            self._desk.done(self._returned[number], YIELD)
        self._returned = {}
        self._desk.wake()

    # ── the end of a child ──

    def _dead(self, slot: Slot, child: Child) -> None:
        """A child's socket has ended, or its process: hear the last of it."""
        child.dead = True
        self._nursery.forget(child)
        how = child.process.bury()
        self._hear(slot, child, child.process.unsent())
        number, at = child.process.box.started()
        if self._nursery.lost(slot, child, how) and not child.leaving:
            self._mourn(slot, child, number, at, how)

    def _mourn(self, slot: Slot, child: Child, number: int, at: float, how: str) -> None:
        """Settle what flew: the running one by its verdict, the others unblamed."""
        victim = child.flying.pop(number, None)
        self._desk.running[slot.place] = None
        rest = {key: flight.job for key, flight in child.flying.items()}
        child.flying.clear()
        self._awaited.discard(child)
        if victim is None:
            log.warning("child %d %s between two tasks; another takes its place", child.process.pid, how)
        else:
            job = victim.job
            job.started, job.ended = at, monotonic()
            self._desk.end(job, self._force.outcome(child, number, job, how))
        if self._withdrawing:
            self._returned |= rest
            if not self._awaited:
                self._give_back()
        else:
            self._desk.put_back(list(rest.values()))

    # ── the end ──

    def _farewell(self) -> None:
        """Let all children leave, and listen to them until they have."""
        for _, child in self._nursery.all():
            child.leaving = True
            child.process.send(frames.frame(frames.Leave()))
        self._withdrawing = True
        while (left := self._end_at - monotonic()) > 0 and self._nursery.all():
            self._select(left)

    def _collapse(self) -> None:
        """Kill whoever is left and return their jobs, as well as that can be told."""
        for slot, child in self._nursery.all():
            child.process.kill()
            child.leaving = False
            self._force.abandoned = self._withdrawing = True
            with suppress(Exception):
                self._dead(slot, child)


__all__ = ["ProcessesPool"]
