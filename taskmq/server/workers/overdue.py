"""Attempts whose time is over: their timeout ends them like a retry, their task's deadline for good; workers are told.

A lease cannot do this. It says when a task may be taken from a worker that is not heard of, and its end neither waits
as a retry does nor names a reason. So a node looks after what its sessions run, whether or not their connection is
there, and asks the store, whose clock decides. When the node dies the lease is left, which ends a little later.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from taskmq.errors import TaskMQError
from taskmq.server.workers import steps
from taskmq.server.workers.messages import Item
from taskmq.server.workers.session import Session

if TYPE_CHECKING:
    from taskmq.server.workers.hub import Hub

log = logging.getLogger("taskmq.server")

AGAIN = 1.0
"""Seconds before it is asked again, should the store's clock be behind or the store be away."""


def overdue(session: Session, now: float) -> list[Item]:
    """What of a session's is over by this node's clock and was not asked for just now."""
    found = []
    for (task_id, epoch), held in session.held.items():
        if held.over_at <= now:
            held.over_at = now + AGAIN
            found.append(Item(task_id, epoch))
    return found


async def end(hub: Hub, session: Session, items: list[Item]) -> None:
    """End what the store finds over, too."""
    node, store = hub.node, hub.node.stores.of(session.environment_id)
    beyond = {(item.task_id, item.epoch): session.held[item.task_id, item.epoch].over for item in items}
    wanted = steps.wishes(session, items, {})
    reserve = node.settings.reserve_ms * 1000
    try:
        kept, now = await node.on("vital", steps.keep, store, session.session_id, wanted, reserve)
        fields, late = steps.renewed(session, wanted, kept, now)
        if late:
            await node.on("steps", store.steps, session.session_id, late)
    except (TaskMQError, TimeoutError, RuntimeError) as error:
        log.warning("ending what is overdue: %s", error)
        return
    for lost in fields["lost"]:  # by this, or by the sweeper, which was quicker
        hub.cancel(session.session_id, lost["task_id"], lost["epoch"], beyond[lost["task_id"], lost["epoch"]])
    if fields["lost"]:
        node.changes.tell(lost["task_id"] for lost in fields["lost"])
        hub.freed(session, None)
