"""The fetch loop: the one place on the hot path that talks to the store.

One turn of the loop, ``step``::

    collect outcomes ──► mark last attempts ──► hand back what is held too long
            ▲                                              │
            │                                              ▼
          sleep ◄── put jobs on the desk ◄── ONE exchange: settle everything pending, reserve into the room left

Why one loop. Settling and reserving in one exchange halves the round trips, and batches form by themselves: while
the exchange is under way, handlers end. A thread per handler that fetches for itself needs a connection each and holds
tasks nobody else in the process can start; a second thread that only settles gained nothing (70.8k against 70.9k
tasks a second).

When it reserves. ``_hungry`` says whether another reserve may bring something. It is true at the start, after a
reserve that filled its room or stopped early, after the waiter has seen work, and when something falls due. A reserve
that brings less than its room, and says it did not stop early, has emptied the queues: then the loop arms the *waiter*,
which blocks in the store's ``wait`` on its own thread (a connection that waits cannot settle), and is hungry
again when that returns. An exchange that settles reserves as well, hungry or not: it costs nothing more.

How it sleeps. Until the first outcome; but while outcomes come less than 1 ms apart, first up to 2 ms for as many as
half of what is in hand (``prefetch.wait_for_company``). Never beyond the moment when the job that is held longest
has been held too long, or something falls due.

Errors. A TransportError changes nothing here: outcomes stay pending and are sent again (a settle is idempotent by
epoch), after a growing pause of at most two seconds. An outcome whose lease was lost is logged and never sent again.
Any other exception is a fault of ours; it ends the loop and, by ``service.py``, the worker.

``turn`` is held during each step. It matters to the solo pool only: there the loop's own thread runs the handlers, and
while one runs long, a deputy takes the turns (``pools/solo.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from time import monotonic, time_ns

from taskmq.errors import OutcomeUnknown, TransportError
from taskmq.transport.base import Extend, Renewal, Reserve, Reserved, Settle, Transport
from taskmq.worker import prefetch
from taskmq.worker.bell import Bell
from taskmq.worker.handoff import OUT_OF_REACH, Desk
from taskmq.worker.jobs import NEVER, Job, Run, job_of, settlement
from taskmq.worker.options import Options
from taskmq.worker.outage import Outage
from taskmq.worker.settling import Settling
from taskmq.worker.shutdown import Shutdown
from taskmq.worker.wait import Waiter

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds between two tries while the store fails."""
EARLIEST_LOOK = 0.001
"""Seconds before looking for something that should be due already; doubled each time there is still nothing."""


class Fetch:
    """The fetch loop of one worker. ``over`` is set when it has ended."""

    def __init__(
        self, store: Transport, desk: Desk, settling: Settling, shutdown: Shutdown, waiter: Waiter, options: Options
    ) -> None:
        self.over = False
        self.turn = Lock()
        self._store = store
        self._desk = desk
        self._settling = settling
        self._shutdown = shutdown
        self._waiter = waiter
        self._options = options
        self.on_lease: Callable[[int], None] = lambda lease: None
        """Told the shortest lease (microseconds) of each batch."""
        self._hungry = True
        self._distrust = False
        self._freed = 0
        self._due: float | None = None
        self._barren = 0
        self._short_handed: float | None = None
        self._ahead = 0  # the store's clock minus ours, microseconds, as the last delivery showed
        self._resume_at = 0.0
        self._outage = Outage("the store", FIRST_PAUSE, LONGEST_PAUSE)
        self._hopeless = False
        self._asks: deque[Bell] = deque()
        self._drained: list[Bell] = []

    def ask_drained(self, bell: Bell) -> None:
        """Ring ``bell`` once nothing is in hand and a reserve begun after this call has found nothing."""
        self._asks.append(bell)
        self._desk.wake()

    # ── one turn ──

    def step(self, ready: Callable[[], bool]) -> None:
        """One turn of the loop. ``ready``: whether the caller has a job to run and must not sleep."""
        now = monotonic()
        self._listen(now)
        if self._shutdown.asked:
            self._shutdown.step(now)
        if now >= self._resume_at:
            try:
                self._work(now)
            except TransportError as error:
                self._stumble(error)
        if self._shutdown.asked and self._shutdown.over(monotonic(), self._hopeless):
            self.over = True
        elif not ready():
            self._sleep()

    def _listen(self, now: float) -> None:
        """Take notice of what has happened meanwhile."""
        freed = self._settling.collect()
        if freed:
            self._freed += freed
            self._distrust = False
        if self._waiter.heard() or (self._due is not None and now >= self._due):
            self._hungry = True
            self._due = None
        if self._short_handed is not None and now >= self._short_handed:
            self._desk.call_hands()
            self._short_handed = None
        while self._asks:
            self._drained.append(self._asks.popleft())
            self._hungry = True

    def _work(self, now: float) -> None:
        if self._desk.marks:
            self._mark()
        if self._options.prefetch is None:
            self._hand_back(now)
        room = self._room(now)
        if room or self._settling.pending:
            self._exchange(room)

    # ── before the exchange ──

    def _mark(self) -> None:
        """Tell the store that these last attempts start now; from here on they are never started again."""
        marks = self._desk.marks
        jobs = [marks.popleft() for _ in range(len(marks))]
        try:
            answers = self._store.extend(Extend(items=[Renewal(job.delivery, started=True) for job in jobs]))
        except TransportError:
            marks.extendleft(reversed(jobs))
            raise
        for job, answer in zip(jobs, answers, strict=True):
            job.lost = answer.lease_until is None
            job.cleared = not job.lost and not answer.cancel
            if not job.cleared:
                job.usable_until = NEVER
            self._desk.let_go(job)

    def _hand_back(self, now: float) -> None:
        """Give back what has been held too long, last first."""
        back = self._desk.take_back_followers(now - prefetch.HOLD)
        band = prefetch.first_overheld(self._desk.oldest(), now)
        if band is not None:
            back += self._desk.take_back(band)
        if back:
            self._distrust = True
            self._settling.give_back(back)

    def _room(self, now: float) -> int:
        """How many to reserve now."""
        if self._shutdown.asked or not (self._hungry or self._settling.pending):
            return 0
        places = self._desk.places
        if not places:
            return 0
        cap = prefetch.most_in_hand(
            places, self._options.prefetch, self._settling.run_time, self._elapsed(now), self._distrust
        )
        return prefetch.room(cap, self._settling.in_hand, min(self._freed, places))

    def _elapsed(self, now: float) -> float | None:
        """How long the running ones have been running, on average."""
        times = [now - job.started for job in self._desk.running if job is not None]
        return sum(times) / len(times) if times else None

    # ── the exchange ──

    def _exchange(self, room: int) -> None:
        """Settle everything pending and reserve into the room, whichever there is, in one exchange."""
        jobs = self._settling.pending[:]
        sent = monotonic()
        settle = Settle(items=[settlement(job, sent) for job in jobs])
        options = self._options
        reserve = Reserve(queues=options.queues, limit=room, worker=options.name, lease=options.lease)
        reserved: Reserved | None = None
        if jobs and room:
            answers, reserved = self._store.settle_and_reserve(settle, reserve)
        elif room:
            answers, reserved = [], self._store.reserve(reserve)
        else:
            answers = self._store.settle(settle)
        self._outage.over()
        self._hopeless = False
        self._freed = 0
        if jobs:
            self._settling.answered(jobs, answers)
        if reserved is not None:
            self._received(reserved, room, sent)

    def _received(self, reserved: Reserved, room: int, sent: float) -> None:
        deliveries = reserved.deliveries
        if deliveries:
            self._accept(reserved, sent)
        self._hungry = reserved.more or len(deliveries) >= room
        if self._hungry:
            return
        if not self._settling.ledger:
            self._tell_drained()
        self._barren = 0 if deliveries else self._barren + 1
        self._due = self._when(reserved.next_due)
        self._waiter.arm(fruitless=not deliveries)

    def _accept(self, reserved: Reserved, sent: float) -> None:
        """Put deliveries on the desk."""
        now = monotonic()
        deliveries = reserved.deliveries
        jobs = [job_of(delivery, sent, now) for delivery in deliveries]
        heads, runs = _runs(jobs)
        self._settling.ledger.update(jobs)
        self.on_lease(min([delivery.lease for delivery in deliveries]))
        self._ahead = deliveries[-1].lease_until - deliveries[-1].lease - time_ns() // 1000
        wake = prefetch.hands(len(heads), self._settling.brisk)
        self._desk.put(heads, runs, wake)
        self._short_handed = now + prefetch.COMPANY if wake < len(heads) else None

    def _when(self, next_due: int | None) -> float | None:
        """The moment to look again by ourselves; beyond a second the waiter's own timeout is earlier."""
        if next_due is None:
            return None
        seconds = (next_due - self._ahead) / 1e6 - time_ns() / 1e9
        # A clock that is wrong (ours, until a delivery has shown the difference) must not make this loop spin.
        seconds = max(seconds, EARLIEST_LOOK * 2 ** min(self._barren, 10))
        return monotonic() + seconds if seconds < 1.0 else None

    def _tell_drained(self) -> None:
        for bell in self._drained:
            bell.ring()
        self._drained = []

    # ── errors ──

    def _stumble(self, error: TransportError) -> None:
        """The store fails: keep everything, pause, try again."""
        if isinstance(error, OutcomeUnknown):
            self._settling.unanswered()
        self._hungry = True
        self._hopeless = not error.retryable
        kept = len(self._settling.pending)
        self._resume_at = monotonic() + self._outage.failed(error, f"{kept} outcomes kept")

    # ── sleep ──

    def _sleep(self) -> None:
        """Sleep until there is something to do."""
        now = monotonic()
        if now < self._resume_at:
            self._desk.sleep(OUT_OF_REACH, self._until(now, self._resume_at))
            return
        if self._desk.marks or self._asks or self._settling.pending or (self._hungry and self._room(now)):
            return
        timer = self._timer()
        need = prefetch.wait_for_company(self._settling.gap, self._settling.in_hand)
        if need is not None:
            window = self._until(now, now + prefetch.COMPANY if timer is None else min(timer, now + prefetch.COMPANY))
            # A thread without a job must not wait for company while the store may have one for it.
            if self._desk.sleep(need, window, eager=self._hungry) or self._desk.outcomes:
                return
        self._desk.sleep(1, None if timer is None else timer - monotonic())

    def _until(self, now: float, moment: float) -> float:
        if self._shutdown.asked:
            moment = min(moment, self._shutdown.next_time(now))
        return moment - now

    def _timer(self) -> float | None:
        """The next moment that does not announce itself."""
        times = [time for time in (self._due, self._short_handed) if time is not None]
        if self._options.prefetch is None:
            oldest = self._desk.oldest_held()
            if oldest is not None:
                times.append(oldest + prefetch.HOLD + 0.0005)
        if self._shutdown.asked:
            times.append(self._shutdown.next_time(monotonic()))
        return min(times, default=None)


def _runs(jobs: list[Job]) -> tuple[list[Job], list[Run]]:
    """The jobs to offer, and the runs: of several jobs of one ordered partition only the head is offered."""
    heads: list[Job] = []
    runs: list[Run] = []
    first_of: dict[tuple[str, str], Job] = {}
    for job in jobs:
        delivery = job.delivery
        head = job
        if delivery.partition is not None and delivery.ordered:
            head = first_of.setdefault((delivery.queue, delivery.partition), job)
        if head is job:
            heads.append(job)
            continue
        if head.run is None:
            head.run = Run()
            runs.append(head.run)
        job.run = head.run
        job.run.rest.append(job)
    return heads, runs


__all__ = ["Fetch"]
