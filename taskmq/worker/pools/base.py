"""What the worker needs of a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Job

if TYPE_CHECKING:
    from taskmq.worker.executor import Executor
    from taskmq.worker.fetch import Fetch
    from taskmq.worker.service import Services


class Pool:
    """Runs the jobs of the desk and returns them to it with their outcomes.

    The methods below are right for handlers that run in this process; a pool whose handlers do not overrides them.
    """

    def __init__(self, desk: Desk, executor: Executor) -> None:
        self._desk = desk
        self._executor = executor

    def start(self, services: Services, fetch: Fetch, ended: Callable[[], None]) -> None:
        """Start its threads, if it has any, as services of the worker.

        One that turns the fetch loop in place of the fetch thread calls ``ended`` if the loop ends in its hands.
        """
        raise NotImplementedError

    def serve(self, fetch: Fetch) -> None:
        """Keep the fetch loop turning until it is over. Runs on the fetch thread."""
        with fetch.turn:
            while not fetch.over:
                fetch.step(_never_ready)

    # ── while it runs ──

    def cancel(self, job: Job) -> None:
        """Ask a running job to stop, once: operators want it, its lease is lost, or grace is over. From any thread."""
        self._executor.cancel(job.delivery)

    def overdue(self, now: float) -> None:
        """Tell handlers that nothing can stop that their timeout is over at ``now``. From the heartbeat thread."""
        self._executor.overdue(now)

    # ── the end ──

    def withdraw(self) -> None:
        """The desk is closed: return what has been taken from it and not been started, unasked, last first."""

    def abandon(self) -> None:
        """Grace is over and what runs now will be given back: end by force what can be ended."""

    def stop(self) -> None:
        """Nothing runs any more, or nobody cares: end what the pool has started."""


def _never_ready() -> bool:
    return False


__all__ = ["Pool"]
