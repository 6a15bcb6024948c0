"""From the desk to child processes: which of them gets how many jobs.

How many is arithmetic, ``room``, as in ``prefetch.py``; the rest is done by the children thread alone. Why a child has
at most two batches is told in ``pools/processes.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from taskmq.worker import frames
from taskmq.worker.children import Child, Flight, Slot
from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Job
from taskmq.worker.mailbox import Mailbox
from taskmq.worker.nursery import Nursery
from taskmq.worker.prefetch import FILL, SHORTEST, smooth
from taskmq.worker.settling import YIELD

BATCH = 64
"""Most jobs in one batch."""
BATCH_BYTES = 1 << 18


def room(left: int, flying: int, run_time: float | None, elapsed: float | None, distrust: bool = False) -> int:
    """How many jobs a child may be sent now.

    ``left``      how many it may still run before it is replaced, or more than a batch
    ``flying``    how many it has
    ``run_time``  average of recent runs, None before the first
    ``elapsed``   how long its running one has been running, None while nothing runs
    ``distrust``  something was taken back from it by the clock since a task of it last ended
    """
    batch = 0
    if run_time is not None and not distrust:
        batch = min(BATCH, int(FILL / max(run_time, elapsed or 0.0, SHORTEST)))
    if not batch:
        return max(0, min(left, 1 - flying))
    return max(0, min(left, batch)) if flying <= batch else 0


class Opening(NamedTuple):
    """A child with room for so many jobs."""

    slot: Slot
    child: Child
    room: int


class Dispatch:
    """Sends jobs. ``mail`` has the children thread called, when the desk has jobs and when a mark is answered."""

    def __init__(self, desk: Desk, nursery: Nursery, mail: Mailbox[Callable[[], None]], max_tasks: int | None) -> None:
        self._desk = desk
        self._nursery = nursery
        self._mail = mail
        self._max_tasks = max_tasks
        self._number = 0
        self._run_time: float | None = None

    def learn(self, mean: float, count: int) -> None:
        """So many jobs have run, for so many seconds on average."""
        self._run_time = smooth(self._run_time, mean, count)

    def dispatch(self, now: float) -> None:
        """Give jobs to the children that have room, those first that have least."""
        desk = self._desk
        while openings := self._openings(now):
            if not desk.waiting():
                if self._mail.parked or self._mail.park(desk):
                    return
                continue
            share = -(-desk.offered() // len(openings))
            for slot, child, most in openings:
                if not self._fill(slot, child, min(most, share), now):
                    return

    def _openings(self, now: float) -> list[Opening]:
        found = []
        for slot in self._nursery.slots:
            if slot.child is not None:
                most = self._room(slot.child, now)
                if most > 0:
                    found.append(Opening(slot, slot.child, most))
        return sorted(found, key=lambda opening: len(opening.child.flying))

    def _room(self, child: Child, now: float) -> int:
        if child.retiring or child.revoking or child.marking is not None or child.process.stuck or child.leaving:
            return 0
        left = BATCH if self._max_tasks is None else self._max_tasks - child.count
        current = child.flying.get(child.running)
        elapsed = None if current is None else now - current.job.started
        return room(left, len(child.flying), self._run_time, elapsed, child.distrust)

    def _fill(self, slot: Slot, child: Child, most: int, now: float) -> bool:
        """Send up to so many jobs; False when none could be sent because the next must wait for an idle child."""
        items: list[frames.Work] = []
        size = 0
        desk = self._desk
        ahead = True
        while len(items) < most and size < BATCH_BYTES and (job := desk.look()) is not None:
            if not job.startable(now):
                desk.end(job, YIELD)
            elif not job.cleared:
                if items or not child.idle:
                    desk.put_back([job])
                    ahead = False
                else:
                    self._mark(slot, child, job)
                break
            else:
                items.append(self._work(child, job, now))
                size += len(job.delivery.body)
        if items:
            self._send(slot, child, items)
        return ahead or bool(items)

    def _work(self, child: Child, job: Job, now: float) -> frames.Work:
        self._number += 1
        child.flying[self._number] = Flight(job, now)
        child.count += 1
        return frames.work(self._number, job.usable_until, job.delivery)

    def _send(self, slot: Slot, child: Child, items: list[frames.Work]) -> None:
        child.process.send(frames.frame(frames.Batch(items)))
        if child.process.stuck:
            self._nursery.watch(slot, child)

    # ── last attempts ──

    def _mark(self, slot: Slot, child: Child, job: Job) -> None:
        """Have the store told that this starts now. The child is kept free for it: what is marked must run."""
        child.marking = job
        self._desk.send_mark(job, self._mail.gate(lambda: self._start_marked(slot, child, job)))

    def _start_marked(self, slot: Slot, child: Child, job: Job) -> None:
        child.marking = None
        now = monotonic()
        if not job.startable(now) or self._desk.closed:
            self._desk.end(job, YIELD)
        elif slot.child is not child:  # it has died meanwhile
            self._desk.put_back([job])
        else:
            self._send(slot, child, [self._work(child, job, now)])


__all__ = ["Dispatch", "room"]
