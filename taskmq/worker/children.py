"""What the pool ``processes`` knows of each child process and of each of its places. Plain records."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from taskmq.worker.blackbox import Note
from taskmq.worker.jobs import Job
from taskmq.worker.process import Process


class ProcessDied(Exception):
    """The process that ran a task is gone, and the task's attempt with it."""


class Flight(NamedTuple):
    """A job that was sent to a child, and when."""

    job: Job
    sent: float


class Verdict(NamedTuple):
    """Why a process is ended by force: for which job, with which error, and whether that had been told to stop."""

    number: int
    error: BaseException
    told: bool


class Child:
    """A process with what flies to it. Changed by the children thread alone."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ready = False
        self.leaving = False
        self.flying: dict[int, Flight] = {}
        """By number, in order."""
        self.running = 0
        self.deadline: float | None = None
        """When the running one is to be ended by force, for the reason ``verdict`` would then give."""
        self.verdict: Verdict | None = None
        self.condemned = False
        """Whether it was killed by that verdict."""
        self.count = 0
        self.heard = monotonic()
        self.poked = False
        self.revoking = False
        self.distrust = False
        self.marking: Job | None = None
        self.retiring = False
        self.dead = False
        self.noted: Note | None = None
        """The progress last heard of; the heartbeat thread's."""

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do, and nothing is being prepared for it."""
        return not self.flying and self.marking is None


class Slot:
    """One of the N places: the child in service, and the one that starts or stands by."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.child: Child | None = None
        self.next: Child | None = None
        self.failures = 0
        self.not_before = 0.0


__all__ = ["Child", "Flight", "ProcessDied", "Slot", "Verdict"]
