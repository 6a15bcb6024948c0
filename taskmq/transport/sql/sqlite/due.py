"""What falls due in a queue, said once: each kind has an index of its own that holds nothing else.

The fragments stand in statements whose queue is ``q``; ``:now`` is the store's clock.
"""

from __future__ import annotations

from taskmq.transport.sql.codes import DUE, RUNNING

NEVER = 1 << 62

TASK = ("due_at", "taskmq_tasks", f"state={DUE}")
"""A task's first due time, or the end of its retry's delay."""
LEASE = ("due_at", "taskmq_tasks", f"state={RUNNING}")
BLOCK = ("blocked_until", "taskmq_flows", "blocked_until IS NOT NULL")
"""The end of a partition's delay."""
EXPIRY = ("expires_at", "taskmq_tasks", f"expires_at IS NOT NULL AND state<>{RUNNING}")
"""A waiting task that must be started before."""

Kind = tuple[str, str, str]


def first(kind: Kind) -> str:
    """When the first of this kind falls due; NULL: none does."""
    column, table, condition = kind
    return f"(SELECT min({column}) FROM {table} d WHERE d.queue_id=q.queue_id AND {condition})"


def any_due(*kinds: Kind) -> str:
    """Whether something of these kinds is due."""
    return " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} d WHERE d.queue_id=q.queue_id AND {condition} AND {column}<=:now)"
        for column, table, condition in kinds
    )


_TIMES = [f"coalesce({first(kind)}, {NEVER})" for kind in (TASK, LEASE, BLOCK)]
NEXT_DUE = f"""
SELECT coalesce(min(min({", ".join(_TIMES)}, CASE WHEN open_at>:now THEN open_at ELSE {NEVER} END)), {NEVER})
FROM taskmq_queues q WHERE namespace=:namespace AND name IN (SELECT value FROM json_each(:names))
"""
"""When something of these queues falls due, or a rate lets the next task start; NEVER: nothing does."""
