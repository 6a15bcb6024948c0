"""Accepting a batch, whose items each have their own answer. Essay: what a batch does not ask.

A submit is mostly new: nobody has its keys. So the items are published without looking who holds their keys – the
store finds that out anyway, in the transaction – and only where it refuses are the holders looked up, item by item.
Neither are the new tasks read back. They are of one transaction, so one of them tells the time of all, and the rest of
what is shown of a task is what was sent. Together this took a third off a batch's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskmq.errors import IdempotencyConflict, QueueFull, TaskMQError
from taskmq.server.bodies import BatchItem
from taskmq.server.database.queues import QueueRecord
from taskmq.server.errors import ApiError, as_api_error, too_large
from taskmq.server.http import Call, Reply, convert
from taskmq.server.routes.submit import SUBMIT, queue_of, same_content
from taskmq.server.submissions import Prepared, accepted, check_batch_key, check_twins, prepare
from taskmq.server.views import Lookup, task_object
from taskmq.state import TaskInfo
from taskmq.transport.base import Publish
from taskmq.transport.serving import Keyed, ServingStore
from taskmq.wire.codes import MAX_BATCH

Answers = list[dict[str, Any] | None]
Holders = Mapping[tuple[str, str], Keyed]
"""(queue, key) → who holds it."""


async def submit_batch(call: Call) -> Reply:
    """Accept what can be accepted, all of it in one transaction."""
    items = call.body.items
    if len(items) > MAX_BATCH:
        raise too_large("batch items", MAX_BATCH, "items")
    answers: Answers = [None] * len(items)
    wanted: dict[int, tuple[BatchItem, QueueRecord]] = {}
    queues: dict[tuple[Any, Any], QueueRecord] = {}
    for index, fields in enumerate(items):
        try:
            body: BatchItem = convert(fields, BatchItem)
            check_batch_key(body.idempotency_key)
            check_twins(body)
            named = (body.queue_id, body.queue)
            if named not in queues:
                queues[named] = await queue_of(call, body, SUBMIT)
            wanted[index] = (body, queues[named])
        except ApiError as error:
            answers[index] = _refused(error.at(f"items[{index}]"))
    if wanted:
        await call.on_thread(_submit, call, wanted, answers)
    return Reply({"items": answers})


def _submit(call: Call, wanted: dict[int, tuple[BatchItem, QueueRecord]], answers: Answers) -> None:
    node, store, environment = call.node, call.node.store_of(call.identity), call.identity.environment_id
    now, most = store.now(), node.settings.max_payload
    prepared: dict[int, Prepared] = {}
    for index, (body, queue) in wanted.items():
        try:
            prepared[index] = prepare(body, call.body.items[index], queue, body.idempotency_key, now, most)
        except ApiError as error:
            answers[index] = _refused(error.at(f"items[{index}]"))
    ids = _publish(store, prepared, answers)
    for index in prepared.keys() - ids.keys():  # a queue that is gone is looked up again the next time
        node.forget(wanted[index][1])
    fresh = [index for index, (_, duplicate) in ids.items() if not duplicate]
    node.claims.arrived(environment, *{prepared[index].message.queue for index in fresh})
    node.metrics.submitted.inc(len(fresh))
    first = store.get([ids[fresh[0]][0]])[0] if fresh else None
    records = {queue.queue_id: queue for _, queue in wanted.values()}
    if first is not None:
        lookup = Lookup(records, {}, {})
        for index in fresh:
            queue = wanted[index][1]
            info = accepted(prepared[index], first.created_at, queue.settings.aging_us)
            answers[index] = {"status": 201, "data": task_object(info, lookup, full=False)}
    _show(call, store, {index: ids[index] for index in ids if answers[index] is None}, answers)


def _show(call: Call, store: ServingStore, ids: dict[int, tuple[str, bool]], answers: Answers) -> None:
    """Answer with tasks as they are now."""
    if not ids:
        return
    infos = {info.id: info for info in store.get(sorted({task_id for task_id, _ in ids.values()})) if info is not None}
    lookup = call.node.lookup(call.identity.environment_id, list(infos.values()))
    for index, (task_id, duplicate) in ids.items():
        info: TaskInfo | None = infos.get(task_id)
        data = {"task_id": task_id} if info is None else task_object(info, lookup, full=False)
        answers[index] = {"status": 200 if duplicate else 201, "data": data}


def _publish(store: ServingStore, prepared: dict[int, Prepared], answers: Answers) -> dict[int, tuple[str, bool]]:
    """Publish what is new in one transaction: item → its task, and whether its key was known."""
    ids: dict[int, tuple[str, bool]] = {}
    holders: Holders = {}
    if any(item.too_late is not None for item in prepared.values()):
        holders = _holders(store, prepared)  # a late repeat still gets its task
    while True:
        fresh = _sort_out(prepared, holders, answers, ids)
        try:
            receipts = store.publish(Publish(messages=[prepared[index].message for index in fresh]))
        except IdempotencyConflict:
            holders = _holders(store, prepared)  # a key is taken by other content: whose?
            continue
        except QueueFull as full:  # a queue was deleted a moment ago: the others' items go in
            for index in fresh:
                if prepared[index].message.queue == full.queue:
                    answers[index] = _refused(as_api_error(full))
            continue
        except TaskMQError as error:
            refusal = as_api_error(error)
            if refusal.status >= 500:
                raise
            for index in fresh:
                answers[index] = _refused(refusal)
            return ids
        for index, receipt in zip(fresh, receipts, strict=True):
            ids[index] = (receipt.id, receipt.duplicate)
        by_key = {(prepared[i].message.queue, prepared[i].message.key): ids[i][0] for i in fresh}
        for index, item in prepared.items():
            if index not in ids and answers[index] is None:
                ids[index] = (by_key[item.message.queue, item.message.key], True)
        return ids


def _holders(store: ServingStore, prepared: Mapping[int, Prepared]) -> Holders:
    keys: dict[str, list[str]] = {}
    for item in prepared.values():
        keys.setdefault(item.message.queue, []).append(item.message.key or "")
    return {(queue, key): holder for queue in keys for key, holder in store.keyed(queue, keys[queue]).items()}


def _sort_out(
    prepared: dict[int, Prepared], holders: Holders, answers: Answers, ids: dict[int, tuple[str, bool]]
) -> list[int]:
    """Answer what is known already or refused; the items to publish, one for each key."""
    first: dict[tuple[str, str], int] = {}
    for index, item in prepared.items():
        if index in ids or answers[index] is not None:
            continue
        at = (item.message.queue, item.message.key or "")
        try:
            if at in holders:
                ids[index] = (same_content(item.message, holders[at]), True)
            elif at in first:
                other = prepared[first[at]].message
                same_content(item.message, Keyed(other.id, other.digest()))
            elif item.too_late is not None:
                raise item.too_late
            else:
                first[at] = index
        except (ApiError, IdempotencyConflict) as error:
            answers[index] = _refused(as_api_error(error).at(f"items[{index}]"))
    return list(first.values())


def _refused(error: ApiError) -> dict[str, Any]:
    return {"status": error.status, "error": error.body()}
