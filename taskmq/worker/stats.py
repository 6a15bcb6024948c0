"""What a worker has done, as numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counters since the worker started. Only its fetch loop writes them.

    ``started``      handlers begun
    ``succeeded``    settled with success
    ``failed``       attempts settled without success: ``retried`` and ``dead`` together
    ``retried``      to be tried again
    ``deferred``     put off by their handler, no attempt consumed
    ``dead``         moved to the dead letters
    ``handed_back``  given back without having been started
    ``lost``         leases lost: the task had moved on before it was settled
    """

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    deferred: int = 0
    dead: int = 0
    handed_back: int = 0
    lost: int = 0


__all__ = ["Stats"]
