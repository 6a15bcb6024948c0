"""Force against child processes: timeouts and cancels that end one in the right task, and what that task is told.

Why a process is frozen before it is killed is told in ``pools/processes.py``. Everything here is done by the children
thread, but for ``abandoned``, which the fetch thread sets.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from taskmq.outcome import Outcome
from taskmq.worker import frames
from taskmq.worker.children import Child, ProcessDied, Verdict
from taskmq.worker.failure import interrupted, timed_out
from taskmq.worker.jobs import Job
from taskmq.worker.settling import given_up
from taskmq.worker.shutdown import LAST_MOMENT

if TYPE_CHECKING:
    from taskmq.worker.executor import Executor

log = logging.getLogger("taskmq.worker")

UNFROZEN = 0.2
"""Seconds until the next try to end a process that did not stop to be looked at."""
COROUTINE_MOMENT = 1.0
"""Seconds that a coroutine has beyond its timeout, to be ended by its event loop."""


class Enforcement:
    """Sets deadlines and verdicts of children, and carries them out.

    ``abandoned``  all jobs have been given back: whose process ends now is told that, and nothing else
    """

    def __init__(self, executor: Executor) -> None:
        self.abandoned = False
        self._executor = executor

    def begun(self, child: Child, job: Job, at: float) -> None:
        """The running job of a child has begun; it may take as long as its timeout."""
        child.deadline = None
        bound = self._executor.bound(job.delivery)
        if bound is not None:
            seconds, coroutine = bound
            child.deadline = at + seconds + (COROUTINE_MOMENT if coroutine else 0.0)
            error = timed_out(seconds, "the process that ran it was killed")
            child.verdict = Verdict(child.running, error, told=False)

    def cancel(self, child: Child) -> None:
        """Tell its running job to stop, once; a moment later its process is ended."""
        if child.verdict is None or not child.verdict.told:
            child.process.send(frames.frame(frames.Cancel(child.running)))
            child.deadline = monotonic() + LAST_MOMENT
            child.verdict = Verdict(child.running, interrupted("its process was ended"), told=True)

    def end(self, child: Child) -> list[Any]:
        """The running job's deadline is over: kill the process if it still runs that one. Answers what it has said."""
        process = child.process
        if not process.freeze():  # it may run on, and begin the next task between our look and our kill
            process.thaw()
            child.deadline = monotonic() + UNFROZEN
            return []
        child.deadline = None
        said, _ = process.receive()
        if self._still_runs(child, said):
            child.condemned = True
            process.kill()
        else:
            process.thaw()
        return said

    def _still_runs(self, child: Child, said: list[Any]) -> bool:
        """Whether a frozen child is in the job that its verdict is about."""
        number = child.running
        if child.verdict is None or child.verdict.number != number or number not in child.flying:
            return False
        return not any(
            type(word) is frames.Ended and word.number == number for word in (*said, *child.process.unsent())
        )

    def outcome(self, child: Child, number: int, job: Job, how: str) -> Outcome:
        """How the job ends whose process has died under it."""
        if self.abandoned:
            return given_up(job)
        verdict = child.verdict
        if verdict is None or verdict.number != number or not child.condemned or "SIGKILL" not in how:
            verdict = Verdict(number, ProcessDied(f"the process that ran it {how}"), told=False)
        log.error("child %d %s in task %s (%s)", child.process.pid, how, job.delivery.id, job.delivery.handler)
        return self._executor.perished(job.delivery, verdict.error, told=verdict.told)


__all__ = ["Enforcement"]
