"""What the pool ``processes`` knows of each child process and of each of its places. Plain records."""

from __future__ import annotations

from time import monotonic

from taskmq.state import Progress
from taskmq.worker.jobs import Job
from taskmq.worker.process import Process


class ProcessDied(Exception):
    """The process that ran a task is gone, and the task's attempt with it."""


class Child:
    """A process with what flies to it. Changed by the children thread alone."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ready = False
        self.leaving = False
        self.flying: dict[int, tuple[Job, float]] = {}
        """By number, in order: the job, and when it was sent."""
        self.running = 0
        self.deadline: float | None = None
        """When the running one is to be ended by force, for the reason ``verdict`` would then give."""
        self.verdict: tuple[int, BaseException, bool] | None = None
        """Why the process is being killed: for which job, with which error, and whether it had been told to stop."""
        self.count = 0
        self.heard = monotonic()
        self.poked = False
        self.revoking = False
        self.distrust = False
        self.marking: Job | None = None
        self.retiring = False
        self.dead = False
        self.noted: tuple[int, Progress] | None = None
        """The progress last heard of, and of which job; the heartbeat thread's."""

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


__all__ = ["Child", "ProcessDied", "Slot"]
