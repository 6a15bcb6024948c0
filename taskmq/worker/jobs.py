"""What a worker has in its hands: jobs and runs. Plain values; who may touch which is said in ``handoff.py``."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

from taskmq.message import Delivery
from taskmq.outcome import Outcome, Yield
from taskmq.transport.base import Settlement

NEVER = float("-inf")
"""A ``usable_until`` that has always passed: the job must not be started any more."""


FOREVER = float("inf")


class Hand(Protocol):
    """Whoever waits for a job or for an answer: a lock that a thread blocks on, or a pool's way to be called."""

    def release(self) -> None:
        """Let it go on. From any thread, once for each time it waits."""
        ...


class Run:
    """Followers of one ordered partition, claimed in one reserve: executed one after another behind their head.

    ``rest``    the members nobody has taken yet, in order; whoever pops one owns it
    ``broken``  a member's lease is lost: nothing of this run may start any more
    """

    __slots__ = ("broken", "rest")

    def __init__(self) -> None:
        self.rest: deque[Job] = deque()
        self.broken = False


class Job(msgspec.Struct, eq=False, gc=False):
    """One delivery from its reserve to its settle. All times are ``time.monotonic``.

    ``band``          the priority deque it belongs to; an aging queue's are all of band 0 and keep claim order
    ``claimed``       when the store's answer arrived: the hold clock
    ``usable_until``  it must not be started from here on: lease over, or the task's ``expires`` passed
    ``start_by``      the part of ``usable_until`` that no heartbeat can move
    ``started`` and ``ended``  of the handler; 0.0 while not yet
    ``cleared``       may be started although it is its last attempt: the store knows
    ``gate``          who waits until it is cleared
    ``told``          when its progress was last sent to the store
    ``lost``          the store said so: somebody else may have the task
    ``given_up``      it still ran after that, and has been given back: its late result is dropped
    ``unsure``        its settle was sent once without an answer
    """

    delivery: Delivery
    band: int
    claimed: float
    usable_until: float
    start_by: float
    cleared: bool
    run: Run | None = None
    started: float = 0.0
    ended: float = 0.0
    outcome: Outcome | None = None
    gate: Hand | None = None
    told: float = 0.0
    lost: bool = False
    given_up: bool = False
    unsure: bool = False

    def startable(self, now: float) -> bool:
        """Whether its handler may still be started."""
        return now < self.usable_until and (self.run is None or not self.run.broken)


def job_of(delivery: Delivery, sent: float, received: float) -> Job:
    """A fresh delivery as a job; ``sent`` and ``received`` enclose the reserve that brought it.

    The lease counts from ``sent``, which is never later than the store's own moment of claiming. The store's clock
    at the claim is ``lease_until - lease``, so the time left to start needs no wall clock of ours.
    """
    usable_until = sent + delivery.lease / 1e6
    start_by = FOREVER
    if delivery.expires_at is not None:
        start_by = sent + (delivery.expires_at - (delivery.lease_until - delivery.lease)) / 1e6
        usable_until = min(usable_until, start_by)
    band = 0 if delivery.aging else delivery.priority
    return Job(delivery, band, received, usable_until, start_by, delivery.attempt < delivery.max_attempts)


def settlement(job: Job, now: float) -> Settlement:
    """What the store is told of an ended job. Its start is told as an age: the store's clock is not ours."""
    return Settlement(job.delivery, job.outcome or Yield(), round((now - job.started) * 1e6) if job.started else None)


__all__ = ["NEVER", "Hand", "Job", "Run", "job_of", "settlement"]
