"""Queues and their partitions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from taskmq.names import check_code
from taskmq.server.bodies import ChangeRate, NewQueue, PartitionAction
from taskmq.server.database import directory
from taskmq.server.database import queues as queue_rows
from taskmq.server.database.engine import Conflict
from taskmq.server.database.queues import QueueRecord
from taskmq.server.errors import ApiError, denied, invalid, not_found
from taskmq.server.http import Call, Reply, convert
from taskmq.server.params import ID
from taskmq.server.permissions import MATRIX
from taskmq.server.queue_settings import QueueSettings, StartRate
from taskmq.server.views import partition_object, queue_object, state_of, stored_states
from taskmq.state import TaskState
from taskmq.transport.serving import Search

ANY = tuple(MATRIX["GET /v1/queues"])
MANAGE, READ = ("queues:manage",), ("tasks:read",)
_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,9})"?\Z')
_DEFAULTS = QueueSettings()
_PAGE = 500


def _etag(record: QueueRecord) -> dict[str, str]:
    return {"ETag": f'"{record.revision}"'}


async def find(call: Call, scopes: tuple[str, ...]) -> QueueRecord:
    """The queue of the path, if the caller may; raises NOT_FOUND, PERMISSION_DENIED."""
    queue_id = call.path["queue_id"]
    if not ID.match(queue_id):
        raise not_found("there is no such queue")
    record = await call.on_thread(call.node.read_queue, call.identity.environment_id, queue_id, None)
    if record is None or record.deleted_at is not None:
        raise not_found("there is no such queue")
    if not call.identity.may_touch(scopes, queue_id):
        raise denied("the token's scope does not cover this queue")
    return record


def check_revision(call: Call, record: QueueRecord) -> None:
    """Raise PRECONDITION_FAILED if the caller has seen another revision."""
    given = call.header(b"if-match")
    if given is None or given.strip() == "*":
        return
    match = _ETAG.match(given.strip())
    if match is None:
        raise invalid('not a revision like "3"', "header.If-Match")
    if int(match[1]) != record.revision:
        raise ApiError("PRECONDITION_FAILED", "the queue has changed", details={"revision": record.revision})


async def create(call: Call) -> Reply:
    """Make a queue, or find the same one."""
    body: NewQueue = call.body
    wanted = QueueSettings(**{name: getattr(body, name) for name in QueueSettings.__struct_fields__}).normal()

    def work() -> tuple[QueueRecord, bool]:
        environment = call.identity.environment_id
        with call.node.database.write() as connection:
            known = queue_rows.by_name(connection, environment, body.name)
            record = known or queue_rows.create(connection, environment, body.name, wanted)
            if known is None:
                directory.note(connection, environment, call.identity.token_id, "queue.create", record.queue_id)
        return call.node.apply(record), known is None

    try:
        record, new = await call.on_thread(work)
    except Conflict:
        record, new = await call.on_thread(work)
    if not new and record.settings != wanted:
        details = {"queue_id": record.queue_id}
        raise ApiError("ALREADY_EXISTS", "a queue of this name has other settings", details=details)
    call.node.remember(record)
    if new:
        return Reply(queue_object(record), 201, {"Location": f"/v1/queues/{record.queue_id}", **_etag(record)})
    return Reply(queue_object(record), 200, _etag(record))


async def list_queues(call: Call) -> Reply:
    """A page of queues, newest first."""
    node, query, environment = call.node, call.query, call.identity.environment_id
    filters = {"list": "queues", "name": query["name"], "order": query["order"]}
    after = None
    if query["cursor"] is not None:
        after = node.cursors.read(query["cursor"], environment, filters, time.time())
    visible = call.identity.visible_queues(ANY)

    def work() -> tuple[list[dict[str, Any]], str | None]:
        with node.database.read() as connection:
            records = queue_rows.of_environment(connection, environment)
        if query["order"] == "asc":
            records.reverse()
        records = [r for r in records if visible is None or r.queue_id in visible]
        records = [r for r in records if query["name"] in (None, r.name)]
        if after is not None:
            records = [r for r in records if (r.queue_id > after) is (query["order"] == "asc") and r.queue_id != after]
        page = records[: query["limit"]]
        stats = {s.name: s for s in node.stores.of(environment).stats([r.queue_id for r in page])} if page else {}
        items = [queue_object(record, stats.get(record.queue_id)) for record in page]
        return items, page[-1].queue_id if len(records) > len(page) else None

    items, last = await call.on_thread(work)
    shown: dict[str, Any] = {"items": items}
    if last is not None:
        shown["next_cursor"] = node.cursors.make(last, environment, filters, time.time())
    return Reply(shown)


async def get(call: Call) -> Reply:
    """A queue with its counts."""
    record = await find(call, ANY)
    stats = await call.on_thread(call.node.store_of(call.identity).stats, [record.queue_id])
    return Reply(queue_object(record, stats[0] if stats else None), headers=_etag(record))


async def change(call: Call) -> Reply:
    """A merge patch."""
    return await _change(call, lambda old: _patched(old, call.body), "queue.change")


async def pause(call: Call) -> Reply:
    """No claim that begins after the answer takes from it."""
    return await _change(call, lambda old: msgspec.structs.replace(old, paused=True), "queue.pause")


async def resume(call: Call) -> Reply:
    """The other way round."""
    return await _change(call, lambda old: msgspec.structs.replace(old, paused=False), "queue.resume")


def _patched(old: QueueSettings, patch: Any) -> QueueSettings:
    changes = {}
    for name in QueueSettings.__struct_fields__:
        value = getattr(patch, name)
        if value is not UNSET:
            value = _patched_rate(old.start_rate, value) if isinstance(value, ChangeRate) else value
            changes[name] = getattr(_DEFAULTS, name) if value is None else value
    return msgspec.structs.replace(old, **changes).normal()


def _patched_rate(old: StartRate | None, patch: ChangeRate) -> StartRate:
    fields = {} if old is None else msgspec.structs.asdict(old)
    fields |= {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    try:
        rate: StartRate = convert({name: value for name, value in fields.items() if value is not None}, StartRate)
    except ApiError as error:
        raise error.at("start_rate") from None
    return rate


async def _change(call: Call, new: Callable[[QueueSettings], QueueSettings], action: str) -> Reply:
    record = await find(call, MANAGE)
    environment, store = call.identity.environment_id, call.node.store_of(call.identity)

    def work() -> QueueRecord:
        with call.node.database.write() as connection:
            current = queue_rows.by_id(connection, environment, record.queue_id)
            if current is None or current.deleted_at is not None:
                raise not_found("there is no such queue")
            check_revision(call, current)
            settings = new(current.settings)
            if settings == current.settings:
                return current
            old = current.settings
            reordered = (settings.order, settings.aging_step_ms) != (old.order, old.aging_step_ms)
            if reordered and _unfinished(store, current):
                raise ApiError(
                    "FAILED_PRECONDITION", "the order changes only while nothing unfinished is in the queue",
                    details={"state": "not_empty"},
                )  # fmt: skip
            changed = queue_rows.change(connection, current, settings)
            directory.note(connection, environment, call.identity.token_id, action, record.queue_id)
        return call.node.apply(changed)

    changed = await call.on_thread(work)
    call.node.remember(changed)
    call.node.claims.wake(environment, changed.queue_id)
    return Reply(queue_object(changed), headers=_etag(changed))


def _unfinished(store: Any, record: QueueRecord) -> int:
    return sum(s.scheduled + s.ready + s.running + s.retrying for s in store.stats([record.queue_id]))


async def delete(call: Call) -> Reply:
    """Free the name of a queue that has nothing unfinished; records of ended tasks stay.

    Whoever still believes in the name may be publishing at this moment. So the store's queue is closed, too, and looked
    at again: what came in between takes the deletion back.
    """
    record = await find(call, MANAGE)
    environment, store = call.identity.environment_id, call.node.store_of(call.identity)
    details = {"state": "not_empty"}
    not_empty = ApiError("FAILED_PRECONDITION", "the queue has unfinished tasks", details=details)

    def work() -> None:
        with call.node.database.write() as connection:
            current = queue_rows.by_id(connection, environment, record.queue_id)
            if current is None or current.deleted_at is not None:
                raise not_found("there is no such queue")
            check_revision(call, current)
            if _unfinished(store, current):
                raise not_empty
            queue_rows.delete(connection, record.queue_id)
            directory.note(connection, environment, call.identity.token_id, "queue.delete", record.queue_id)

    def close() -> None:
        store.close_queue(record.queue_id)
        if _unfinished(store, record):
            with call.node.database.write() as connection:
                queue_rows.restore(connection, record)
            call.node.apply(record)
            raise not_empty

    await call.on_thread(work)
    call.node.forget(record)
    await call.on_thread(close)
    return Reply({"queue_id": record.queue_id, "deleted": True})


async def purge(call: Call) -> Reply:
    """Cancel what waits."""
    record = await find(call, MANAGE)
    states = [TaskState(state) for state in call.body.states]
    store = call.node.store_of(call.identity)

    def work() -> int:
        cancelled, after = 0, None
        while True:
            wanted = Search(queues=[record.queue_id], states=stored_states(states), after=after, limit=_PAGE)
            found = store.search(wanted)
            meant = [info.id for info in found.tasks if state_of(info) in states]
            cancelled += store.withdraw(meant).count(TaskState.CANCELLED)
            if found.cursor is None:
                return cancelled
            after = found.cursor

    cancelled = await call.on_thread(work)
    call.node.changes.tell_all()
    return Reply({"cancelled": cancelled})


# ── partitions ──


async def partitions(call: Call) -> Reply:
    """A page of live partitions."""
    record = await find(call, READ)
    node, query, environment = call.node, call.query, call.identity.environment_id
    filters = {"list": f"partitions:{record.queue_id}", "partition": query["partition"]}
    after = ""
    if query["cursor"] is not None:
        after = node.cursors.read(query["cursor"], environment, filters, time.time())
    store = node.store_of(call.identity)
    codes = [] if query["partition"] is None else [query["partition"]]

    def work() -> tuple[list[dict[str, Any]], str | None]:
        found = [info for info in store.partitions(record.queue_id, codes) if info.code > after]
        page = found[: query["limit"]]
        workers = node.worker_names([info.worker for info in page if info.worker])
        shown = [partition_object(info, workers) for info in page]
        return shown, page[-1].code if len(found) > len(page) else None

    items, last = await call.on_thread(work)
    shown: dict[str, Any] = {"items": items}
    if last is not None:
        shown["next_cursor"] = node.cursors.make(last, environment, filters, time.time())
    return Reply(shown)


async def partition_action(call: Call) -> Reply:
    """Pause, resume, release, skip or purge a partition."""
    body: PartitionAction = call.body
    try:
        check_code(body.partition)
    except ValueError as error:
        raise invalid(str(error), "partition") from None
    record = await find(call, MANAGE)
    store, queue = call.node.store_of(call.identity), record.queue_id

    def work() -> dict[str, Any]:
        done: dict[str, Any] = {"partition": body.partition, "action": body.action}
        if body.action in ("pause", "resume"):
            store.pause_partition(queue, body.partition, body.action == "pause")
        elif body.action == "purge":
            waiting = [TaskState.QUEUED, TaskState.SCHEDULED, TaskState.RETRYING]
            wanted = Search(queues=[queue], states=waiting, partition=body.partition, limit=_PAGE)
            while found := store.search(wanted).tasks:
                done["cancelled"] = done.get("cancelled", 0) + len(store.withdraw([info.id for info in found]))
            done.setdefault("cancelled", 0)
        else:
            act = store.release_partition if body.action == "release" else store.skip_head
            if not act(queue, body.partition):
                what = "not held" if body.action == "release" else "without a head that could be skipped"
                raise ApiError("FAILED_PRECONDITION", f"the partition is {what}", details={"state": what})
        return done

    data = await call.on_thread(work)
    call.node.claims.wake(call.identity.environment_id, queue)
    return Reply(data)
