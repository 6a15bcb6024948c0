"""What an ended lease does to a task (model.md §2). Essay: leases, fencing and blame.

A lease is the right to execute until a deadline. The store grants it with a new *epoch*, and every settle or extend
names that epoch: a worker that was thought dead and comes back finds its settle refused, because the epoch has moved
on. So two deliveries of one task never both settle, whatever the clocks of the workers say; only the store's clock
decides when a lease is over, and a lease that is over but not yet reaped may still be settled or renewed – nobody
else has the task, and refusing would only repeat work.

*Blame.* When a worker dies, some of its tasks were running and others were waiting in its memory. Heartbeats name
the started ones; between two heartbeats the store can only guess, and guesses that the first unsettled task of each
batch, and of each run, was started. These consume an attempt. The rest go back unblamed, so a task that kills its
worker does not burn the attempts of its neighbours.

*Poison.* The retry budget binds. With a budget above ten, ten blamed expiries are enough, and so are a hundred
expiries of any kind: a task that kills its worker before anybody can say so cannot go round for ever.
"""

from __future__ import annotations

from taskmq.state import TaskState

MAX_BLAMED = 10
MAX_EXPIRIES = 100

POISON = "poison"
MAX_ATTEMPTS = "max_attempts"
DIED = "the worker died or froze: its lease ended"
"""The error of a task that is dead because its leases ended."""


def reason_of_death(*, attempts: int, max_attempts: int, blamed: int, expiries: int) -> str | None:
    """Why a task is dead once these were counted, or None while it may go back in line."""
    if attempts >= max_attempts:
        return MAX_ATTEMPTS
    return POISON if blamed >= MAX_BLAMED or expiries >= MAX_EXPIRIES else None


def overriding_end(*, cancel_requested: bool, deadline_at: int | None, now: int) -> TaskState | None:
    """How a task ends that comes back without success, if it was cancelled or its deadline is over."""
    if cancel_requested:
        return TaskState.CANCELLED
    return TaskState.EXPIRED if deadline_at is not None and deadline_at <= now else None
