"""Accepting tasks: one, or a batch whose items each have their own answer."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from taskmq.errors import IdempotencyConflict, TaskMQError
from taskmq.message import Message
from taskmq.server.bodies import BatchItem, Submit
from taskmq.server.database.queues import QueueRecord
from taskmq.server.errors import ApiError, as_api_error, denied, too_large
from taskmq.server.http import Call, Reply, convert
from taskmq.server.submissions import Prepared, check_batch_key, check_header_key, check_twins, prepare
from taskmq.server.views import task_object
from taskmq.state import TaskInfo
from taskmq.transport.base import Publish
from taskmq.transport.serving import Keyed, ServingStore
from taskmq.wire.codes import MAX_BATCH

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
    reply = await call.node.on("http", _submit, call, queue, key)
    call.node.claims.wake(call.identity.environment_id, queue.queue_id)
    return reply


def _submit(call: Call, queue: QueueRecord, key: str) -> Reply:
    node, store = call.node, call.node.store_of(call.identity)
    prepared = prepare(call.body, call.fields, queue, key, store.now(), node.settings.max_payload)
    duplicate, task_id = _publish_one(store, prepared, queue)
    info = store.get([task_id])[0]
    if info is None:  # its record's retention is over, its key's own time is not
        details = {"task_id": task_id}
        raise ApiError("IDEMPOTENCY_CONFLICT", "the key belongs to a task whose record is gone", details=details)
    data = task_object(info, node.lookup(call.identity.environment_id, [info]))
    if duplicate:
        return Reply(data, 200, {"Idempotency-Replayed": "true"})
    node.metrics.submitted.inc()
    return Reply(data, 201, {"Location": f"/v1/tasks/{task_id}"})


def _publish_one(store: ServingStore, prepared: Prepared, queue: QueueRecord) -> tuple[bool, str]:
    """Whether its key was known, and the task's id; raises what refuses it."""
    message = prepared.message
    if prepared.too_late is not None:
        known = _known(store, message)
        if known is None:
            raise prepared.too_late
        return True, known
    (receipt,) = store.publish(Publish(messages=[message]))
    return receipt.duplicate, receipt.id


def _known(store: ServingStore, message: Message) -> str | None:
    assert message.key is not None
    holder = store.keyed(message.queue, [message.key]).get(message.key)
    return None if holder is None else _same_content(message, holder)


def _same_content(message: Message, holder: Keyed) -> str:
    if holder.digest != message.digest():
        raise IdempotencyConflict("the key is taken", key=message.key or "", task_id=holder.task_id)
    return holder.task_id


# ── batches ──


async def submit_batch(call: Call) -> Reply:
    """Accept what can be accepted, all of it in one transaction."""
    items = call.body.items
    if len(items) > MAX_BATCH:
        raise too_large("batch items", MAX_BATCH, "items")
    answers: list[dict[str, Any] | None] = [None] * len(items)
    wanted: dict[int, tuple[BatchItem, QueueRecord]] = {}
    for index, fields in enumerate(items):
        try:
            body: BatchItem = convert(fields, BatchItem)
            check_batch_key(body.idempotency_key)
            check_twins(body)
            wanted[index] = (body, await queue_of(call, body, SUBMIT))
        except ApiError as error:
            answers[index] = _refused(error)
    if wanted:
        await call.node.on("http", _submit_batch, call, wanted, answers)
    for environment, queue in {(call.identity.environment_id, queue.queue_id) for _, queue in wanted.values()}:
        call.node.claims.wake(environment, queue)
    return Reply({"items": answers})


def _submit_batch(
    call: Call, wanted: dict[int, tuple[BatchItem, QueueRecord]], answers: list[dict[str, Any] | None]
) -> None:
    node, store = call.node, call.node.store_of(call.identity)
    now = store.now()
    prepared: dict[int, Prepared] = {}
    for index, (body, queue) in wanted.items():
        try:
            most = node.settings.max_payload
            prepared[index] = prepare(body, call.body.items[index], queue, body.idempotency_key, now, most)
        except ApiError as error:
            answers[index] = _refused(error)
    ids = _publish_batch(store, prepared, answers)
    infos = {info.id: info for info in store.get(sorted({task_id for task_id, _ in ids.values()})) if info is not None}
    lookup = node.lookup(call.identity.environment_id, list(infos.values()))
    for index, (task_id, duplicate) in ids.items():
        info: TaskInfo | None = infos.get(task_id)
        data = {"task_id": task_id} if info is None else task_object(info, lookup, full=False)
        answers[index] = {"status": 200 if duplicate else 201, "data": data}
        if not duplicate:
            node.metrics.submitted.inc()


def _publish_batch(
    store: ServingStore, prepared: dict[int, Prepared], answers: list[dict[str, Any] | None]
) -> dict[int, tuple[str, bool]]:
    """Publish what is new in one transaction: item → its task, and whether its key was known."""
    ids: dict[int, tuple[str, bool]] = {}
    while True:
        fresh = _sort_out(store, prepared, answers, ids)
        try:
            receipts = store.publish(Publish(messages=[prepared[index].message for index in fresh]))
        except IdempotencyConflict:
            continue  # somebody took a key meanwhile; the next look finds it
        except TaskMQError as error:
            refusal = as_api_error(error)
            if refusal.status >= 500:
                raise
            answers_of = dict.fromkeys(fresh, refusal)
            for index, why in answers_of.items():
                answers[index] = _refused(why)
            return ids
        for index, receipt in zip(fresh, receipts, strict=True):
            ids[index] = (receipt.id, receipt.duplicate)
        by_key = {(prepared[i].message.queue, prepared[i].message.key): ids[i][0] for i in fresh}
        for index, item in prepared.items():
            if index not in ids and answers[index] is None:
                ids[index] = (by_key[item.message.queue, item.message.key], True)
        return ids


def _sort_out(
    store: ServingStore,
    prepared: dict[int, Prepared],
    answers: list[dict[str, Any] | None],
    ids: dict[int, tuple[str, bool]],
) -> list[int]:
    """Answer what is known already or refused; the items to publish, one for each key."""
    keys: dict[str, list[str]] = {}
    for item in prepared.values():
        keys.setdefault(item.message.queue, []).append(item.message.key or "")
    holders = {(queue, key): holder for queue in keys for key, holder in store.keyed(queue, keys[queue]).items()}
    first: dict[tuple[str, str], int] = {}
    for index, item in prepared.items():
        if index in ids or answers[index] is not None:
            continue
        at = (item.message.queue, item.message.key or "")
        try:
            if at in holders:
                ids[index] = (_same_content(item.message, holders[at]), True)
            elif at in first:
                other = prepared[first[at]].message
                _same_content(item.message, Keyed(other.id, other.digest()))
            elif item.too_late is not None:
                raise item.too_late
            else:
                first[at] = index
        except (ApiError, IdempotencyConflict) as error:
            answers[index] = _refused(as_api_error(error))
    return list(first.values())


def _refused(error: ApiError) -> dict[str, Any]:
    return {"status": error.status, "error": error.body()}
