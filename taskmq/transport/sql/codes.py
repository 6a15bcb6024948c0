"""The small numbers that columns carry, apart from ``tables`` so that using a database needs no SQLAlchemy."""

from __future__ import annotations

from taskmq.state import TaskState

SCHEMA_VERSION = 2

# state of an unfinished task
DUE, READY, RUNNING, PARKED = 0, 1, 2, 3

# state of an ended one
ENDED = {4: TaskState.SUCCEEDED, 5: TaskState.FAILED, 6: TaskState.CANCELLED, 7: TaskState.EXPIRED}
CODE_OF = {state: code for code, state in ENDED.items()}
SUCCEEDED, FAILED, CANCELLED, EXPIRED = ENDED

# what taskmq_counts counts: unfinished tasks by where they are, and dead letters; a parked task counts as ready
COUNT_SCHEDULED, COUNT_READY, COUNT_RUNNING, COUNT_RETRYING, COUNT_DEAD = 0, 1, 2, 3, 5

COUNT_QUEUED = (COUNT_SCHEDULED, COUNT_READY, COUNT_RETRYING)
"""What ``max_queued`` bounds."""

# how long an idempotency key lives
KEY_WITH_RECORD, KEY_UNTIL_END, KEY_WITH_TTL = 0, 1, 2


def reservation_of(now: int) -> int:
    """The ``batch`` of a task that is reserved only: below 0, so that nobody is blamed when it ends (leases.py)."""
    return -now


BATCH, SHARED_BATCH = 100, 500
"""Most tasks that one verb promotes, reaps or expires in a queue: on SQLite more holds the writer too long; where many
write at the same time a batch is dearer to begin."""
