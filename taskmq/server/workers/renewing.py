"""Renewals, and attempts whose time is over. Essay: who ends what takes too long.

A timeout ends an attempt like a retry, a deadline its task for good, and the worker is told. A lease cannot do this. It
says when a task may be taken from a worker that is not heard of, and its end neither waits as a retry does nor names a
reason. So the store finds at a renewal what is over, and since a worker may not renew in time, a node also asks for
what its sessions run, whether or not their connection is there. When the node dies the lease is left, which ends a
little later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taskmq.errors import TaskMQError
from taskmq.server.workers import steps
from taskmq.server.workers.messages import Item
from taskmq.server.workers.session import Session
from taskmq.state import Progress

if TYPE_CHECKING:
    from taskmq.server.node import Node
    from taskmq.server.workers.hub import Hub

log = logging.getLogger("taskmq.server")

AGAIN = 1.0
"""Seconds before it is asked again, should the store's clock be behind or the store be away."""


async def renew(
    node: Node, session: Session, items: Sequence[Item], progress: dict[tuple[str, int], Progress]
) -> dict[str, Any]:
    """Renew, end what is over, and tell others if something went; the fields of ``renewed``."""
    environment, store = session.environment_id, node.stores.of(session.environment_id)
    wanted = steps.wishes(session, items, progress)
    reserve = node.settings.reserve_ms * 1000
    keeping = (store, session.session_id, wanted, reserve)
    kept, now = await node.on_behalf(environment, "vital", steps.keep, *keeping)
    fields, late = steps.renewed(session, wanted, kept, now)
    if late:
        await node.on_behalf(environment, "steps", store.steps, session.session_id, late)
        node.changes.tell(step.task_id for step in late)
    if fields["lost"]:
        node.hub.freed(session, None)
    return fields


def look_after(hub: Hub, now: float) -> None:
    """Ask for what is over by this node's clock and was not asked for just now."""
    for session in hub.sessions.values():
        items = [Item(*token) for token, held in session.held.items() if held.over_at <= now]
        for item in items:
            session.held[item.task_id, item.epoch].over_at = now + AGAIN
        if items:
            hub.spawn(_end(hub, session, items))


async def _end(hub: Hub, session: Session, items: list[Item]) -> None:
    beyond = {(item.task_id, item.epoch): session.held[item.task_id, item.epoch].over for item in items}
    try:
        fields = await renew(hub.node, session, items, {})
    except (TaskMQError, TimeoutError, RuntimeError) as error:
        log.warning("ending what is overdue: %s", error)
        return
    for lost in fields["lost"]:  # by this, or by the sweeper, which was quicker
        hub.cancel(session.session_id, lost["task_id"], lost["epoch"], beyond[lost["task_id"], lost["epoch"]])
