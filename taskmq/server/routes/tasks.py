"""Looking at tasks, and changing their course: get, list, why, cancel, replay."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from taskmq.outcome import storable
from taskmq.server.database import sessions as session_rows
from taskmq.server.errors import ApiError, denied, invalid, not_found
from taskmq.server.holds import holds
from taskmq.server.http import Call, Reply
from taskmq.server.params import ID
from taskmq.server.routes.submit import queue_of
from taskmq.server.signals import FIRST_LOOK, LAST_LOOK, wait_for
from taskmq.server.views import reserved, state_of, stored_states, task_object
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.serving import Revival, Search
from taskmq.wire.times import parse_time

READ, MANAGE = ("tasks:read",), ("tasks:manage",)
CANCEL = ("tasks:manage", "tasks:submit")
REPLAYABLE = (TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED)


async def find(call: Call, scopes: tuple[str, ...]) -> TaskInfo:
    """The task of the path, if the caller may; raises NOT_FOUND, PERMISSION_DENIED."""
    task_id = call.path["task_id"]
    store = call.node.store_of(call.identity)
    info = (await call.on_thread(store.get, [task_id]))[0] if ID.match(task_id) else None
    if info is None:
        raise not_found("there is no such task")
    if not call.identity.may_touch(scopes, info.queue):
        raise denied("the token's scope does not cover the task's queue")
    return info


async def shown(call: Call, info: TaskInfo) -> dict[str, Any]:
    """The task object."""
    lookup = await call.on_thread(call.node.lookup, call.identity.environment_id, [info])
    return task_object(info, lookup)


async def get(call: Call) -> Reply:
    """A task, at once or when it has ended."""
    info = await find(call, READ)
    wait = call.query["wait_ms"] / 1000
    if wait and not info.state.terminal:
        info = await _ended(call, info, wait)
    return Reply(await shown(call, info))


async def _ended(call: Call, info: TaskInfo, seconds: float) -> TaskInfo:
    """The task when it has ended, or as it is when the time is over."""
    node, store = call.node, call.node.store_of(call.identity)
    until = time.monotonic() + seconds
    event = node.changes.listen(info.id)
    pause = FIRST_LOOK
    try:
        while not node.closing:
            found = (await call.on_thread(store.get, [info.id]))[0]
            if found is None:
                return info
            info, left = found, until - time.monotonic()
            if info.state.terminal or left <= 0:
                return info
            if not await wait_for(event, min(pause, left)):
                pause = min(LAST_LOOK, pause * 1.5)
        return info
    finally:
        node.changes.forget(info.id, event)


async def list_tasks(call: Call) -> Reply:
    """A page of tasks."""
    node, query = call.node, call.query
    environment = call.identity.environment_id
    filters = {name: value for name, value in query.items() if name not in ("limit", "cursor") and value is not None}
    after = None
    if query["cursor"] is not None:
        after = node.cursors.read(query["cursor"], environment, filters, time.time())
    queues = await _queues(call)
    if queues == [] or query["schedule_id"] is not None:  # no schedules yet: nothing was made by one
        return Reply({"items": []})
    store = node.store_of(call.identity)
    search = Search(
        queues=queues,
        states=stored_states(query["state"] or []),
        handler=query["handler"],
        partition=query["partition"],
        limit_key=query["resource_key"],
        priority=query["priority"],
        created_from=query["created_from"],
        created_to=query["created_to"],
        oldest_first=query["order"] == "asc",
        after=after,
        limit=query["limit"],
    )
    found = await call.on_thread(store.search, search)
    lookup = await call.on_thread(node.lookup, environment, found.tasks)
    page: dict[str, Any] = {"items": [task_object(info, lookup, full=False) for info in _of_states(found.tasks, query)]}
    if found.cursor is not None:
        page["next_cursor"] = node.cursors.make(found.cursor, environment, filters, time.time())
    return Reply(page)


def _of_states(tasks: list[TaskInfo], query: Mapping[str, Any]) -> list[TaskInfo]:
    wanted = query["state"]
    return tasks if wanted is None else [info for info in tasks if state_of(info) in wanted]


async def _queues(call: Call) -> list[str] | None:
    """The queues that may be listed; None: all. A queue that is not there has no tasks."""
    query, identity = call.query, call.identity
    if query["queue_id"] is not None and query["queue"] is not None:
        raise invalid("give one of queue_id and queue", "query.queue")
    visible = identity.visible_queues(READ)
    if query["queue_id"] is not None:
        named = [query["queue_id"]]
    elif query["queue"] is not None:
        try:
            named = [(await call.node.queue(identity.environment_id, name=query["queue"])).queue_id]
        except ApiError:
            return []
    else:
        return visible
    return named if visible is None else [queue for queue in named if queue in visible]


async def why(call: Call) -> Reply:
    """What holds a task back."""
    info = await find(call, READ)
    found = [] if info.state.terminal else await call.on_thread(holds, call.node, call.identity, info)
    return Reply({"state": state_of(info), "holds": found})


async def cancel(call: Call) -> Reply:
    """Cancel what waits, ask what runs to stop."""
    reason = "" if call.body is None else call.body.reason
    if len(reason.encode()) > 256:
        raise invalid("longer than 256 bytes", "reason")
    info = await find(call, CANCEL)
    node, store = call.node, call.node.store_of(call.identity)
    if info.state is TaskState.CANCELLED:
        return Reply(await shown(call, info))
    if info.state.terminal:
        raise ApiError("FAILED_PRECONDITION", "the task has ended", details={"state": info.state.value})
    if reason or (info.state is TaskState.RUNNING and not reserved(info)):
        await call.on_thread(_note_cancel, call, info.id, reason or None)
    (state,) = await call.on_thread(store.withdraw, [info.id])
    if state is not None and state.terminal and state is not TaskState.CANCELLED:
        raise ApiError("FAILED_PRECONDITION", "the task has ended", details={"state": state.value})
    if state is TaskState.RUNNING:
        node.hub.cancel(info.worker, info.id, info.epoch, "user")
    node.changes.tell([info.id])
    node.claims.wake(call.identity.environment_id, info.queue)
    return Reply(await shown(call, await find(call, CANCEL)))


def _note_cancel(call: Call, task_id: str, reason: str | None) -> None:
    with call.node.database.write() as connection:
        now = call.node.store_of(call.identity).now()
        session_rows.request_cancel(connection, task_id, now, None if reason is None else storable(reason))


def _forget_cancel(call: Call, task_id: str) -> None:
    with call.node.database.write() as connection:
        session_rows.forget_cancel(connection, task_id)


async def replay(call: Call) -> Reply:
    """Queue an ended task again, with a new budget."""
    body = call.body
    expected = None if body is None or body.expected_replay_count is UNSET else body.expected_replay_count
    available_at = _available_at(body)
    info = await find(call, MANAGE)
    store = call.node.store_of(call.identity)
    if expected is not None and info.replays == expected + 1:
        return Reply(await shown(call, info), headers={"Idempotency-Replayed": "true"})
    details = {"state": info.state.value, "replay_count": info.replays}
    refused = ApiError("FAILED_PRECONDITION", "only an ended task that did not succeed is replayed", details=details)
    if info.state not in REPLAYABLE or (expected is not None and info.replays != expected):
        raise refused
    try:
        await call.node.queue(call.identity.environment_id, queue_id=info.queue)
    except ApiError:
        gone = {"state": "queue_deleted"}
        raise ApiError("FAILED_PRECONDITION", "the task's queue is deleted", details=gone) from None
    wish = Revival(task_id=info.id, available_at=available_at, expected=info.replays)
    revived = await call.on_thread(store.revive, wish)
    if revived is None:
        raise refused
    if info.state is TaskState.CANCELLED:
        await call.on_thread(_forget_cancel, call, info.id)
    call.node.claims.wake(call.identity.environment_id, info.queue)
    return Reply(await shown(call, revived))


def _available_at(body: Any) -> int | None:
    if body is None or body.available_at is UNSET:
        return None
    try:
        return parse_time(body.available_at)
    except ValueError as error:
        raise invalid(str(error), "available_at") from None


async def replay_many(call: Call) -> Reply:
    """Queue failed tasks of one queue again, the oldest first."""
    if (call.body.queue_id is UNSET) is (call.body.queue is UNSET):
        raise invalid("give exactly one of queue_id and queue", "queue_id")
    queue = await queue_of(call, call.body, MANAGE)
    store = call.node.store_of(call.identity)

    def work() -> dict[str, Any]:
        wanted = Search(queues=[queue.queue_id], states=[TaskState.FAILED], oldest_first=True, limit=call.body.limit)
        replayed = sum(
            store.revive(Revival(task_id=info.id, expected=info.replays)) is not None
            for info in store.search(wanted).tasks
        )
        stats = store.stats([queue.queue_id])
        return {"replayed": replayed, "remaining": stats[0].dead if stats else 0}

    data = await call.on_thread(work)
    call.node.claims.wake(call.identity.environment_id, queue.queue_id)
    return Reply(data)
