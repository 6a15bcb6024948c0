"""All workers of a node: who is connected, sessions that go on, and what must be looked after by the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from taskmq.errors import TaskMQError
from taskmq.ids import new_id
from taskmq.outcome import storable
from taskmq.server.auth import unauthenticated
from taskmq.server.database import sessions as session_rows
from taskmq.server.database.sessions import SessionRecord
from taskmq.server.errors import ApiError, denied
from taskmq.server.permissions import Identity
from taskmq.server.signals import until
from taskmq.server.workers import messages, renewing, steps
from taskmq.server.workers.connection import DRAINED_LINGERS, Connection
from taskmq.server.workers.session import HeldTask, Session, held_of, until_of
from taskmq.transport.serving import Forfeit, HandBack, Held, Step
from taskmq.wire.codes import MAX_MESSAGE
from taskmq.wire.times import format_time

if TYPE_CHECKING:
    from taskmq.server.node import Node

log = logging.getLogger("taskmq.server")

TICK = 0.25
SEEN_EVERY = 5.0
"""Seconds between two notes in the database of which sessions are alive, and whether another node has taken one."""
TOKENS_EVERY = 1.5
"""Seconds between two looks whether tokens still hold."""
AWAY = 120.0
"""Seconds for which a session without a connection is remembered here; the database remembers it for days."""
CONNECT = ("workers:connect",)


class Hub:
    """Connections and sessions of one node. Everything runs on the loop's thread."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connections: set[Connection] = set()
        self.sessions: dict[str, Session] = {}
        self.anonymous: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticking: asyncio.Task[None] | None = None
        node.hub = self
        node.metrics.gauge("taskmq_worker_connections", "open connections", lambda: len(self.connections))
        node.metrics.gauge("taskmq_claims_in_flight", "statements of claims", lambda: node.claims.pool.in_flight)
        node.metrics.gauge("taskmq_claims_pending", "claims that wait", lambda: node.claims.pool.pending)

    def start(self) -> None:
        """Begin to look at the clock."""
        self._ticking = asyncio.create_task(self._tick())

    # ── arrivals ──

    def check_room(self, peer: str, anonymous: bool) -> None:
        """Raise QUOTA_EXCEEDED if the node has as many connections as it takes."""
        settings = self.node.settings
        bounds = [(settings.max_connections, len(self.connections))]
        if anonymous:
            bounds.append((settings.max_anonymous, self.anonymous[peer]))
        for most, current in bounds:
            if current >= most:
                details = {"limit": "node.connections", "max": most, "current": current}
                raise ApiError("QUOTA_EXCEEDED", "the node has as many connections as it takes", details=details)

    def joined(self, connection: Connection) -> None:
        """A socket is open."""
        self.connections.add(connection)
        if connection.token is None:
            self.anonymous[connection.peer] += 1

    def left(self, connection: Connection) -> None:
        """A socket is closed, or about to be."""
        self.connections.discard(connection)
        session = connection.session
        if session is None:
            if connection.token is None:
                self.anonymous[connection.peer] -= 1
                self.anonymous += Counter()
            return
        if session.connection is connection:
            session.connection, session.seen = None, time.monotonic()
            self.node.claims.gone(session.session_id)

    async def welcome(self, connection: Connection, hello: messages.Hello) -> dict[str, Any]:
        """A hello: who it is, which session goes on; the fields of ``welcome``."""
        token = connection.token if hello.token is UNSET else hello.token
        if token is None:
            raise unauthenticated()
        identity = await self.node.tokens.identify(token)
        if not any(scope in identity.by_scope for scope in CONNECT):
            raise denied("the token has no scope for this")
        if connection.token is None:
            self.anonymous[connection.peer] -= 1
        connection.token = token
        session = Session(
            session_id=new_id(),
            identity=identity,
            token=token,
            worker_id=hello.worker_id,
            capabilities=frozenset((c.handler, c.handler_version) for c in hello.capabilities),
            capacity=hello.capacity,
            keys=hello.resource_keys,
        )
        wanted = None if hello.resume is UNSET else hello.resume
        known = await self._known(identity, hello, wanted.session_id) if wanted is not None else None
        resumed: list[dict[str, Any]] = []
        lost = [] if wanted is None else [_named(item) for item in wanted.deliveries]
        if wanted is not None and known is not None:
            session.session_id = known.session_id
            self._supersede(known.session_id)
            resumed, lost = await self._resume(session, wanted)
        await self.node.on_behalf(session.environment_id, "http", self._put, session, hello, known)
        session.connection = connection
        self.sessions[session.session_id] = session
        connection.session = session
        return self._welcome(session, resumed, lost)

    def _welcome(self, session: Session, resumed: list[dict[str, Any]], lost: list[dict[str, Any]]) -> dict[str, Any]:
        settings = self.node.settings
        return {
            "protocol": 1,
            "session_id": session.session_id,
            "node": settings.node,
            "server_time": format_time(time.time_ns() // 1000),
            "lease_ms": steps.DEFAULT_LEASE // 1000,
            "reserve_ms": settings.reserve_ms,
            "heartbeat_ms": settings.heartbeat_ms,
            "max_claim": messages.MAX_CLAIM,
            "max_message_bytes": MAX_MESSAGE,
            "resumed": resumed,
            "lost": lost,
        }

    async def _known(self, identity: Identity, hello: messages.Hello, session_id: str) -> SessionRecord | None:
        """The session to go on with, if it is this worker's."""

        def work() -> SessionRecord | None:
            with self.node.database.read() as connection:
                return next(iter(session_rows.find(connection, [session_id])), None)

        record = await self.node.on("http", work)
        if record is None or record.environment_id != identity.environment_id or record.worker_id != hello.worker_id:
            return None
        return record

    def _supersede(self, session_id: str) -> None:
        old = self.sessions.get(session_id)
        if old is not None and old.connection is not None:
            old.connection.close(4001, "SUPERSEDED")
            self.left(old.connection)

    def _put(self, session: Session, hello: messages.Hello, known: SessionRecord | None) -> None:
        now = time.time_ns() // 1000
        info = {
            "capabilities": [[c.handler, c.handler_version] for c in hello.capabilities],
            "capacity": hello.capacity,
            "resource_keys": hello.resource_keys,
            "sdk": "" if hello.sdk is UNSET else storable(hello.sdk),
        }
        record = SessionRecord(
            session_id=session.session_id,
            environment_id=session.environment_id,
            worker_id=session.worker_id,
            node=self.node.settings.node,
            info=info,
            connected_at=now if known is None else known.connected_at,
            last_seen_at=now,
        )
        self.node.stores.of(session.environment_id)  # opened here, or the loop would have to wait for it
        with self.node.database.write() as connection:
            session_rows.put(connection, record, new=known is None)
        self.node.know_workers([record])

    async def _resume(
        self, session: Session, wanted: messages.Resume
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What of a session is still held goes on; what its worker does not name is given up."""
        store = self.node.stores.of(session.environment_id)
        listed = dict.fromkeys((item.task_id, item.epoch) for item in wanted.deliveries)

        def work() -> tuple[list[Held], dict[str, HeldTask]]:
            held = store.held(session.session_id)
            given_up: list[Step] = [
                (Forfeit if h.started else HandBack)(h.task_id, h.epoch)
                for h in held
                if (h.task_id, h.epoch) not in listed
            ]
            store.steps(session.session_id, given_up)
            by_token = {(h.task_id, h.epoch): h for h in held}
            kept = [by_token[token] for token in listed if token in by_token]
            return kept, {h.task_id: self._remembered(session, h) for h in kept}

        environment = session.environment_id
        kept, remembered = await self.node.on_behalf(environment, "steps", work)
        session.held.update({(h.task_id, h.epoch): remembered[h.task_id] for h in kept})
        keeps = steps.wishes(session, [messages.Item(h.task_id, h.epoch) for h in kept], {})
        keeping = (store, session.session_id, keeps, self.node.settings.reserve_ms * 1000)
        results, now = await self.node.on_behalf(environment, "vital", steps.keep, *keeping)
        resumed = []
        for h, result in zip(kept, results, strict=True):
            held = session.held[h.task_id, h.epoch]
            if result.lease_until is None:
                session.drop((h.task_id, h.epoch))
            elif result.over is not None:
                held.over_at = 0.0  # it is ended at the next look
            else:
                left = max(0, result.lease_until - now)
                held.until = until_of(left)
                fields = {"attempt": h.attempt, "lease_ms": left // 1000}
                phase = "started" if result.started else "reserved"
                resumed.append({"task_id": h.task_id, "epoch": h.epoch, "phase": phase, **fields})
        alive = {(r["task_id"], r["epoch"]) for r in resumed}
        lost = [_named(item) for item in wanted.deliveries if (item.task_id, item.epoch) not in alive]
        self.node.claims.wake_all(session.environment_id)
        return resumed, lost

    def _remembered(self, session: Session, held: Held) -> HeldTask:
        """What this node must know of a task that another one dispatched. Blocking."""
        old = self.sessions.get(session.session_id)
        known = None if old is None else old.held.get((held.task_id, held.epoch))
        if known is not None:
            return known
        record = self.node.read_queue(session.environment_id, held.queue, None)
        lease = steps.DEFAULT_LEASE if record is None else record.settings.lease_ms * 1000
        made = held_of(b"{}", held.queue, lease, lease)
        store = self.node.stores.of(session.environment_id)
        info = store.get([held.task_id])[0]
        if info is not None:
            steps.remember_options(made, info, store.now())
        made.started, made.attempt = held.started, held.attempt
        return made

    # ── what happens to sessions ──

    def cancel(self, session_id: str | None, task_id: str, epoch: int, reason: str) -> None:
        """Tell whoever runs it, if that is here; elsewhere the next renewal says so."""
        session = self.sessions.get(session_id or "")
        if session is not None and session.connection is not None:
            session.connection.say({"type": "cancel", "task_id": task_id, "epoch": epoch, "reason": reason})

    def freed(self, session: Session, queues: Collection[str] | None) -> None:
        """Something left the session's hands: others may go on in these queues, and a drain may be complete.

        ``queues`` None: nobody knows where.
        """
        if queues is None:
            self.node.claims.wake_all(session.environment_id)
        elif queues:
            self.node.claims.wake(session.environment_id, *queues)
        self._check_drained(session)

    def _check_drained(self, session: Session) -> None:
        connection = session.connection
        if not session.draining or session.held or connection is None or session.drain_ref is None:
            return
        connection.say({"type": "drained", "ref": session.drain_ref})
        session.drain_ref, connection.drained_at = None, time.monotonic()
        self.spawn(self.node.on("http", self._note_end, session.session_id))

    def _note_end(self, session_id: str) -> None:
        with self.node.database.write() as connection:
            session_rows.end(connection, session_id, time.time_ns() // 1000)

    async def give_back_reservations(self, session: Session) -> None:
        """Hand back what was not started, at once."""
        store = self.node.stores.of(session.environment_id)
        reserved = [token for token, held in session.held.items() if not held.started]
        if reserved:
            work = [HandBack(*token) for token in reserved]
            with contextlib.suppress(TaskMQError, TimeoutError, RuntimeError):
                await self.node.on_behalf(session.environment_id, "steps", store.steps, session.session_id, work)
            for token in reserved:
                held = session.held.get(token)
                if held is not None and not held.started:
                    session.drop(token)
        self.freed(session, None if reserved else ())

    def spawn(self, work: Any) -> None:
        """Do something beside all else; a failure is a word in the log."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("a worker's session: %s", task.exception())

    # ── the clock ──

    async def _tick(self) -> None:
        tokens_at = seen_at = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            for connection in list(self.connections):
                self._look_at(connection, now)
            renewing.look_after(self, now)
            for session in [s for s in self.sessions.values() if s.connection is None and now - s.seen > AWAY]:
                del self.sessions[session.session_id]
            try:
                if now - tokens_at > TOKENS_EVERY:
                    tokens_at = now
                    await self._check_tokens()
                if now - seen_at > SEEN_EVERY:
                    seen_at = now
                    await self._note_seen()
            except (TaskMQError, TimeoutError) as error:
                log.warning("looking after sessions: %s", error)

    def _look_at(self, connection: Connection, now: float) -> None:
        settings, session = self.node.settings, connection.session
        if session is None:
            if not connection.greeted and now - connection.opened > settings.hello_timeout:
                connection.close(1008, "HELLO_TIMEOUT")
        elif connection.drained_at is not None:
            if now - connection.drained_at > DRAINED_LINGERS:
                connection.close(1000, "DRAINED")
        elif now - connection.heard > settings.heartbeat_timeout:
            connection.close(1008, "HEARTBEAT_TIMEOUT")
        if connection.outbound.stalled(now, settings.write_stall):
            connection.close(1008, "SLOW_CONSUMER")
        if session is not None:
            session.room()
            self._check_drained(session)

    async def _check_tokens(self) -> None:
        for session in list(self.sessions.values()):
            if session.connection is None:
                continue
            try:
                session.identity = await self.node.tokens.identify(session.token)
            except ApiError as error:
                if error.code == "UNAUTHENTICATED" and session.connection is not None:
                    session.connection.say({"type": "drain", "reason": "token", "grace_ms": 0})
                    session.connection.close(1008, "UNAUTHENTICATED")

    async def _note_seen(self) -> None:
        connected = [s.session_id for s in self.sessions.values() if s.connection is not None]
        if not connected:
            return

        def work() -> list[SessionRecord]:
            with self.node.database.write() as connection:
                session_rows.seen(connection, connected, time.time_ns() // 1000)
                return session_rows.find(connection, connected)

        for record in await self.node.on("http", work):
            session = self.sessions.get(record.session_id)
            if session is not None and session.connection is not None and record.node != self.node.settings.node:
                session.connection.close(4001, "SUPERSEDED")

    # ── the end ──

    async def shutdown(self, grace: float | None = None) -> None:
        """Drain every worker: reservations back, claims answered, started ones may finish; then close with 1012.

        ``grace``: seconds for them; None: as configured.
        """
        self.node.claims.shutdown()
        grace = self.node.settings.grace if grace is None else grace
        sessions = [s for s in self.sessions.values() if s.connection is not None]
        for session in sessions:
            session.draining = True
            assert session.connection is not None
            session.connection.say({"type": "drain", "reason": "shutdown", "grace_ms": int(grace * 1000)})
        await self.node.claims.landed()
        await asyncio.gather(*(self.give_back_reservations(s) for s in sessions), return_exceptions=True)
        await until(lambda: not any(s.held and s.connection is not None for s in sessions), grace, 0.05)
        closing = list(self.connections)
        for connection in closing:
            connection.close(1012, "SHUTDOWN")
        await until(lambda: not self.connections, 2.0, 0.01)
        if self._ticking is not None:
            self._ticking.cancel()
        await _settled(self._tasks)


async def _settled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = list(tasks)
    if pending:
        await asyncio.wait(pending, timeout=1.0)


def _named(item: messages.Item) -> dict[str, Any]:
    return {"task_id": item.task_id, "epoch": item.epoch}
