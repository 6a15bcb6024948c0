"""Pieces of statements that all engines word alike: what falls due in a queue, how many tasks it has, a task's columns.

They stand in statements whose queue is ``q``; ``:now`` is the store's clock. Each kind of due thing has an index of
its own that holds nothing else.
"""

from __future__ import annotations

from taskmq.transport.sql.codes import COUNT_RUNNING, DUE, READY, RUNNING
from taskmq.transport.sql.rows import TaskRow

NEVER = 1 << 62

TASK = ("due_at", "taskmq_tasks", f"state={DUE}")
"""A task's first due time, or the end of its retry's delay."""
LEASE = ("due_at", "taskmq_tasks", f"state={RUNNING}")
BLOCK = ("blocked_until", "taskmq_flows", "blocked_until IS NOT NULL")
"""The end of a partition's delay."""
EXPIRY = ("expires_at", "taskmq_tasks", f"expires_at IS NOT NULL AND state<>{RUNNING}")
"""A waiting task that must be started before."""

TASK_ROW = ", ".join(
    f"coalesce(t.{name}, 0) AS {name}" if name in ("lane", "due_at") else f"t.{name}"
    for name in TaskRow.__struct_fields__
)
"""A TaskRow of a task ``t``."""

Kind = tuple[str, str, str]


def first(kind: Kind) -> str:
    """When the first of this kind falls due; NULL: none does. As ``min`` it may be a walk over all of them."""
    column, table, condition = kind
    return f"(SELECT {column} FROM {table} d WHERE d.queue_id=q.queue_id AND {condition} ORDER BY {column} LIMIT 1)"


def any_due(*kinds: Kind) -> str:
    """Whether something of these kinds is due."""
    return " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} d WHERE d.queue_id=q.queue_id AND {condition} AND {column}<=:now)"
        for column, table, condition in kinds
    )


def counted(*kinds: int, tables: tuple[str, ...] = ("taskmq_counts",)) -> str:
    """How many tasks of these kinds the queue has. ``tables``: where the engine counts."""
    wanted = ", ".join(map(str, kinds))
    sums = [
        f"""(SELECT coalesce(sum(n), 0) FROM taskmq_handlers h JOIN {table} c USING (handler_id)
    WHERE h.queue_id=q.queue_id AND kind IN ({wanted}))"""
        for table in tables
    ]
    return sums[0] if len(sums) == 1 else f"({'+'.join(sums)})"


def claimable(counts: tuple[str, ...]) -> str:
    """A row if something of these queues can be claimed now; ``counts`` as in ``counted``."""
    return f"""
SELECT 1 FROM taskmq_queues q WHERE namespace=:namespace AND name IN @names
  AND paused=0 AND (max_running IS NULL OR {counted(COUNT_RUNNING, tables=counts)}<max_running)
  AND ((open_at IS NULL OR open_at<=:now) AND (
      EXISTS (SELECT 1 FROM taskmq_handlers h JOIN taskmq_tasks t ON t.lane=-h.handler_id AND t.state={READY}
        WHERE h.queue_id=q.queue_id)
      OR EXISTS (SELECT 1 FROM taskmq_flows f WHERE f.queue_id=q.queue_id AND elig=1)
      OR EXISTS (SELECT 1 FROM taskmq_handlers h CROSS JOIN taskmq_parked p
        WHERE p.handler_id=h.handler_id AND owed>0 AND h.queue_id=q.queue_id))
    OR {any_due(TASK, LEASE, BLOCK)})
LIMIT 1
"""


UNFINISHED = """
SELECT 1 FROM taskmq_tasks t JOIN taskmq_queues q USING (queue_id) WHERE t.id=:id AND q.namespace=:namespace
"""


def next_due(least: str) -> str:
    """When something of these queues falls due, or a rate lets the next task start; NEVER: nothing does.

    ``least``: the engine's function for the least of several values.
    """
    times = [f"coalesce({first(kind)}, {NEVER})" for kind in (TASK, LEASE, BLOCK)]
    return f"""
SELECT coalesce(min({least}({", ".join(times)}, CASE WHEN open_at>:now THEN open_at ELSE {NEVER} END)), {NEVER})
FROM taskmq_queues q WHERE namespace=:namespace AND name IN @names
"""
