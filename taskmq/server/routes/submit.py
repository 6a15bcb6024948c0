"""Accepting one task."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from taskmq.errors import IdempotencyConflict, QueueFull
from taskmq.message import Message
from taskmq.server.bodies import Submit
from taskmq.server.database.queues import QueueRecord
from taskmq.server.errors import ApiError, denied
from taskmq.server.http import Call, Reply
from taskmq.server.submissions import Prepared, check_header_key, check_twins, prepare
from taskmq.server.views import task_object
from taskmq.transport.base import Publish
from taskmq.transport.serving import Keyed, ServingStore

SUBMIT = ("tasks:submit",)


async def queue_of(call: Call, body: Any, scopes: tuple[str, ...]) -> QueueRecord:
    """The queue that a body names, if the caller may touch it; raises NOT_FOUND, PERMISSION_DENIED."""
    queue_id = None if body.queue_id is UNSET else body.queue_id
    name = None if body.queue is UNSET else body.queue
    queue = await call.node.queue(call.identity.environment_id, queue_id=queue_id, name=name)
    if not call.identity.may_touch(scopes, queue.queue_id):
        raise denied("the token's scope does not cover this queue")
    return queue


async def submit(call: Call) -> Reply:
    """Accept one task."""
    body: Submit = call.body
    key = check_header_key(call.header(b"idempotency-key"))
    check_twins(body)
    queue = await queue_of(call, body, SUBMIT)
    try:
        return await call.on_thread(_submit, call, queue, key)
    except QueueFull:  # deleted a moment ago; its name may be another's by now
        call.node.forget(queue)
        return await call.on_thread(_submit, call, await queue_of(call, body, SUBMIT), key)


def _submit(call: Call, queue: QueueRecord, key: str) -> Reply:
    node, store = call.node, call.node.store_of(call.identity)
    prepared = prepare(call.body, call.fields, queue, key, store.now(), node.settings.max_payload)
    duplicate, task_id = _publish_one(store, prepared)
    if not duplicate:
        node.claims.arrived(call.identity.environment_id, queue.queue_id)
    info = store.get([task_id])[0]
    if info is None:  # its record's retention is over, its key's own time is not
        details = {"task_id": task_id}
        raise ApiError("IDEMPOTENCY_CONFLICT", "the key belongs to a task whose record is gone", details=details)
    data = task_object(info, node.lookup(call.identity.environment_id, [info]))
    if duplicate:
        return Reply(data, 200, {"Idempotency-Replayed": "true"})
    node.metrics.submitted.inc()
    return Reply(data, 201, {"Location": f"/v1/tasks/{task_id}"})


def _publish_one(store: ServingStore, prepared: Prepared) -> tuple[bool, str]:
    """Whether its key was known, and the task's id; raises what refuses it."""
    message = prepared.message
    if prepared.too_late is not None:
        assert message.key is not None
        holder = store.keyed(message.queue, [message.key]).get(message.key)
        if holder is None:
            raise prepared.too_late
        return True, same_content(message, holder)
    (receipt,) = store.publish(Publish(messages=[message]))
    return receipt.duplicate, receipt.id


def same_content(message: Message, holder: Keyed) -> str:
    """The id of the task that has the message's key; raises IdempotencyConflict where it is another one."""
    if holder.digest != message.digest():
        raise IdempotencyConflict("the key is taken", key=message.key or "", task_id=holder.task_id)
    return holder.task_id


__all__ = ["queue_of", "same_content", "submit"]
