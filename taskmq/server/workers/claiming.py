"""A worker's claim: checked, sent through the pool, answered once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq import codec
from taskmq.errors import InvalidArgument, TaskMQError
from taskmq.message import Delivery
from taskmq.server.claims import Claim, ClaimRefused, Draining
from taskmq.server.database.queues import QueueRecord
from taskmq.server.errors import ApiError, denied
from taskmq.server.params import ID
from taskmq.server.submissions import EXTRAS
from taskmq.server.workers import messages
from taskmq.server.workers.session import Session
from taskmq.wire import strict
from taskmq.wire.codes import MAX_MESSAGE
from taskmq.wire.times import format_time, parse_time

if TYPE_CHECKING:
    from taskmq.server.workers.connection import Connection

CONSUME = ("workers:consume",)
ROOM_WAIT = 1.0
"""Seconds that a claim waits for room, as long as one that is parked."""
_decode_args = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def claim_tasks(connection: Connection, session: Session, message: messages.Claim) -> None:
    """Answer a claim: ``dispatch``, ``empty`` or ``error``."""
    node, ref = connection.node, message.ref
    try:
        queues = [await _queue(connection, session, name) for name in message.queues]
        if session.draining or node.closing:
            raise Draining
        await connection.outbound.room.wait()
        if not await _has_room(session):
            connection.answer("empty", ref, {"reason": "no_capacity", "retry_after_ms": 0})
            return
        claim = Claim(
            session=session.session_id,
            application=session.identity.application_id,
            environment=session.environment_id,
            queues=tuple(sorted({queue.queue_id for queue in queues})),
            capabilities=session.capabilities,
            keys=session.keys,
            room=lambda: min(message.n, session.room()),
        )
        deliveries = await node.claims.claim(claim)
    except (Draining, asyncio.CancelledError) as stop:
        if isinstance(stop, asyncio.CancelledError) and not session.draining:
            raise
        connection.answer("empty", ref, {"reason": "draining", "retry_after_ms": 0})
    except ClaimRefused as refusal:
        connection.answer("error", ref, {"error": _refused(str(refusal))})
    except (ApiError, TaskMQError, TimeoutError, RuntimeError) as error:
        connection.fail(ref, error)
    else:
        if session.draining or session.connection is not connection:
            node.claims.hand_back(claim, deliveries)
            connection.answer("empty", ref, {"reason": "draining", "retry_after_ms": 0})
        elif deliveries:
            _send(connection, session, ref, deliveries, {queue.queue_id: queue for queue in queues})
        else:
            paused = all([(await _queue(connection, session, name)).settings.paused for name in message.queues])
            reason = "paused" if paused else "no_task"
            connection.answer("empty", ref, {"reason": reason, "retry_after_ms": 0})


async def _queue(connection: Connection, session: Session, name: str) -> QueueRecord:
    """A queue by id or name that the session may consume."""
    node, environment = connection.node, session.environment_id
    try:
        queue = await node.queue(environment, **({"queue_id": name} if ID.match(name) else {"name": name}))
    except ApiError:
        if not ID.match(name):
            raise
        queue = await node.queue(environment, name=name)
    if not session.identity.may_touch(CONSUME, queue.queue_id):
        raise denied("the token's scope does not cover this queue")
    return queue


async def _has_room(session: Session) -> bool:
    """Whether the worker can take anything, now or within a second."""
    end = asyncio.get_running_loop().time() + ROOM_WAIT
    while session.room() <= 0:
        session.freed.clear()
        left = end - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(session.freed.wait(), max(0.0, left))
        except TimeoutError:
            return session.room() > 0
    return True


def _refused(code: str) -> ApiError:
    if code == "CLAIM_PENDING":
        return ApiError("FAILED_PRECONDITION", "a claim of this session is pending", details={"state": "claim_pending"})
    details = {"limit": "node.claims", "max": 128}
    return ApiError("RATE_LIMITED", "the node has as many claims as it takes", details=details, retry_after=1.0)


def _send(
    connection: Connection, session: Session, ref: int, deliveries: list[Delivery], queues: dict[str, QueueRecord]
) -> None:
    """Dispatch, as many messages as it takes."""
    node = connection.node
    reserve = node.settings.reserve_ms
    runs = _runs(deliveries)
    packed: list[list[bytes]] = [[]]
    size = 0
    for delivery in deliveries:
        queue = queues[delivery.queue]
        session.take(delivery, queue.settings.lease_ms * 1000, reserve * 1000)
        data = _dispatched(delivery, queue, reserve, runs.get((delivery.id, delivery.epoch)))
        if packed[-1] and size + len(data) > MAX_MESSAGE - 1024:
            packed.append([])
            size = 0
        packed[-1].append(data)
        size += len(data) + 1
    for tasks in packed[:-1]:
        connection.outbound.put(b'{"type":"dispatch","ref":%d,"more":true,"tasks":[%b]}' % (ref, b",".join(tasks)))
    connection.answered()
    connection.outbound.put(b'{"type":"dispatch","ref":%d,"tasks":[%b]}' % (ref, b",".join(packed[-1])))
    node.metrics.dispatched.inc(len(deliveries))


def _runs(deliveries: list[Delivery]) -> dict[tuple[str, int], dict[str, Any]]:
    """Consecutive tasks of one ordered partition: which run, which place, of how many."""
    flows = Counter((d.queue, d.partition) for d in deliveries if d.ordered)
    heads: dict[tuple[str, str | None], str] = {}
    places: Counter[tuple[str, str | None]] = Counter()
    runs = {}
    for delivery in deliveries:
        flow = (delivery.queue, delivery.partition)
        if flows[flow] > 1:
            head = heads.setdefault(flow, delivery.id)
            runs[delivery.id, delivery.epoch] = {"id": head, "pos": places[flow], "len": flows[flow]}
            places[flow] += 1
    return runs


def _dispatched(delivery: Delivery, queue: QueueRecord, reserve_ms: int, run: dict[str, Any] | None) -> bytes:
    """A task of a dispatch. The payload goes through as it is stored: every digit, every key in its place."""
    payload, extras = b"null", {}
    try:
        envelope = codec.decode(delivery.body)
        args = _decode_args(envelope.args)
        payload = bytes(args[0]) if args else b"null"
        extras = msgspec.json.decode(envelope.headers.get(EXTRAS, "{}"))
    except (InvalidArgument, msgspec.DecodeError):
        pass
    head: dict[str, Any] = {
        "task_id": delivery.id,
        "epoch": delivery.epoch,
        "reserve_ms": reserve_ms,
        "queue_id": queue.queue_id,
        "queue": queue.name,
        "handler": delivery.handler,
        "handler_version": delivery.version or "v1",
        "payload_version": extras.get("payload_version", "v1"),
    }
    tail: dict[str, Any] = {
        "attempt": delivery.attempt,
        "max_attempts": delivery.max_attempts,
        "available_at": format_time(delivery.available_at),
    }
    if delivery.priority:
        tail["priority"] = delivery.priority
    if "deadline" in extras:
        now = delivery.lease_until - delivery.lease
        tail["deadline"] = extras["deadline"]
        tail["deadline_in_ms"] = max(0, (parse_time(extras["deadline"]) - now) // 1000)
    if delivery.partition is not None:
        tail["partition"] = delivery.partition
    if run is not None:
        tail["run"] = run
    if delivery.limit_key is not None:
        tail["resource_key"] = delivery.limit_key
    for name in ("timeout_ms", "traceparent", "schedule_id", "nominal_at"):
        if name in extras:
            tail[name] = extras[name]
    return b'%b,"payload":%b,%b' % (strict.pack(head)[:-1], payload, strict.pack(tail)[1:])
