"""One server process: what its routes and connections share, and the threads on which they ask the database.

The loop's thread never touches the database. Pools of threads do, so that one kind of work cannot hold up another:
requests, claims (as many as the claim pool has slots), the steps of deliveries, renewals of leases, and sweeping. A
slow database may fill the first three; a heartbeat finds the fourth free. In each of them an environment whose work
hangs has a share only (``threads.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from sqlalchemy import select

from taskmq.errors import TaskMQError
from taskmq.server.auth import Tokens
from taskmq.server.claims import Claims
from taskmq.server.database import directory, migrations
from taskmq.server.database import queues as queue_rows
from taskmq.server.database import sessions as session_rows
from taskmq.server.database.engine import Database
from taskmq.server.database.queues import QueueRecord
from taskmq.server.database.tables import environments
from taskmq.server.errors import ApiError, not_found
from taskmq.server.metrics import Metrics
from taskmq.server.paging import Cursors
from taskmq.server.permissions import Identity
from taskmq.server.settings import Settings
from taskmq.server.signals import Changes
from taskmq.server.stepping import Stepper
from taskmq.server.stores import Stores
from taskmq.server.threads import Threads
from taskmq.server.views import Lookup
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import Maintain
from taskmq.transport.serving import ServingStore

if TYPE_CHECKING:
    from taskmq.server.workers.hub import Hub

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("taskmq.server")

POOLS = (("http", 16, 8), ("claims", 4, 1), ("steps", 8, 2), ("vital", 4, 2), ("sweep", 2, 1))
"""Name, threads, and how many of them may be at work for one environment."""
QUEUE_REMEMBERED = 1.0
"""Seconds for which a queue's settings are believed; changes on this node show at once."""
SWEEP = 0.5
"""Seconds between two rounds over the environments: ended leases are taken back at most a second late."""
ENVIRONMENTS_REMEMBERED = 5.0
SESSIONS_KEPT = 8 * 86_400_000_000
"""Microseconds: longer than a task's history names them by default."""
FORGET_EVERY = 3600.0


class Node:
    """A server's state. ``hub`` is set by the application that serves workers."""

    hub: Hub

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url)
        self.stores = Stores(settings.database_url)
        self.metrics = Metrics()
        self.changes = Changes()
        self.tokens = Tokens(self._look_up, settings.request_rate, settings.request_burst)
        self.closing = False
        self._pools = {name: Threads(size, share, f"taskmq-{name}") for name, size, share in POOLS}
        self.claims = Claims(self)
        self.steppers: dict[str, Stepper] = {}
        self._queues: dict[tuple[str, str], tuple[float, QueueRecord]] = {}
        self._workers: dict[str, str] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._tidying: dict[str, asyncio.Task[None]] = {}
        """Environments that are being swept: a slow one delays no other."""
        self.cursors = Cursors(b"")

    # ── life ──

    async def start(self) -> None:
        """Prepare what needs the database, and begin sweeping."""
        self.claims.start()
        key = await self.on("http", directory.shared_secret, self.database, "cursors")
        self.cursors = Cursors(key)
        await self.on("http", self._finish_changes)
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Everything that is open is closed; requests under way were awaited by the server before."""
        self.closing = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        if self._tidying:
            await asyncio.wait(self._tidying.values(), timeout=1.0)
        self.claims.close()
        for pool in self._pools.values():
            pool.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.stores.close()
        self.database.close()

    def check_open(self) -> None:
        """Raise UNAVAILABLE while the node shuts down."""
        if self.closing:
            raise ApiError("UNAVAILABLE", "the server is shutting down", details={"outcome": "not_applied"})

    # ── threads ──

    async def on(self, pool: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work on a pool's thread; raises TimeoutError when the store does not answer in time."""
        return await self.on_behalf(None, pool, work, *args, **kwargs)

    async def on_behalf(
        self, environment_id: str | None, pool: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same, with no more threads than one environment may have."""
        job = partial(work, *args, **kwargs)
        return await self._pools[pool].run(environment_id, job, self.settings.store_timeout)

    async def _look_up(self, token_id: str, secret: str) -> Identity | None:
        return await self.on("http", directory.identify, self.database, token_id, secret)

    # ── queues ──

    async def queue(self, environment_id: str, *, queue_id: str | None = None, name: str | None = None) -> QueueRecord:
        """A living queue by id or name; raises NOT_FOUND."""
        known = self._queues.get((environment_id, queue_id or f"={name}"))
        if known is not None and time.monotonic() - known[0] < QUEUE_REMEMBERED:
            return known[1]
        record = await self.on_behalf(environment_id, "http", self.read_queue, environment_id, queue_id, name)
        if record is None or record.deleted_at is not None:
            raise not_found("there is no such queue")
        self.remember(record)
        return record

    def read_queue(self, environment_id: str, queue_id: str | None, name: str | None) -> QueueRecord | None:
        """A queue as the database has it."""
        with self.database.read() as connection:
            if queue_id is not None:
                return queue_rows.by_id(connection, environment_id, queue_id)
            return queue_rows.by_name(connection, environment_id, name or "")

    def remember(self, record: QueueRecord) -> None:
        """A queue as it is now."""
        now = time.monotonic()
        self._queues[record.environment_id, record.queue_id] = (now, record)
        self._queues[record.environment_id, f"={record.name}"] = (now, record)

    def remembered(self, environment_id: str, queue_id: str) -> QueueRecord | None:
        """A queue as it was last seen here, however long ago."""
        known = self._queues.get((environment_id, queue_id))
        return None if known is None else known[1]

    def forget(self, record: QueueRecord) -> None:
        """A queue that is deleted."""
        for key in (record.queue_id, f"={record.name}"):
            self._queues.pop((record.environment_id, key), None)

    def apply(self, record: QueueRecord) -> QueueRecord:
        """Bring the store's queue to this revision, and say so."""
        store = self.stores.of(record.environment_id)
        store.configure_queues({record.queue_id: record.settings.config()}, overwrite=True)
        with self.database.write() as connection:
            queue_rows.mark_applied(connection, record)
        return record

    def _finish_changes(self) -> None:
        """Changes of a server that ended between its two transactions."""
        with self.database.read() as connection:
            waiting = queue_rows.unapplied(connection)
        for record in waiting:
            self.apply(record)

    # ── looking up what a task's row does not say ──

    def lookup(self, environment_id: str, infos: list[TaskInfo]) -> Lookup:
        """Names of queues and workers of these tasks, and when they were asked to stop. Blocking."""
        now = time.monotonic()
        found: dict[str, QueueRecord] = {}
        missing = set()
        for queue_id in {info.queue for info in infos}:
            known = self._queues.get((environment_id, queue_id))
            if known is not None and now - known[0] < QUEUE_REMEMBERED:
                found[queue_id] = known[1]
            else:
                missing.add(queue_id)
        sessions = {info.worker for info in infos if info.worker} | {
            attempt.worker for info in infos for attempt in info.attempts if attempt.worker
        }
        unknown = [session for session in sessions if session not in self._workers]
        asked = [info.id for info in infos if info.cancel_requested or info.state is TaskState.CANCELLED]
        cancels: dict[str, tuple[int, str | None]] = {}
        if missing or unknown or asked:
            with self.database.read() as connection:
                for queue_id in missing:
                    record = queue_rows.by_id(connection, environment_id, queue_id)
                    if record is not None:
                        found[queue_id] = record
                        if record.deleted_at is None:
                            self.remember(record)
                self.know_workers(session_rows.find(connection, unknown) if unknown else [])
                cancels = session_rows.cancel_requests(connection, asked) if asked else {}
        return Lookup(found, {s: self._workers[s] for s in sessions if s in self._workers}, cancels)

    def worker_names(self, sessions: list[str]) -> dict[str, str]:
        """How these sessions' workers call themselves. Blocking."""
        unknown = [session for session in sessions if session not in self._workers]
        if unknown:
            with self.database.read() as connection:
                self.know_workers(session_rows.find(connection, unknown))
        return {session: self._workers[session] for session in sessions if session in self._workers}

    def know_workers(self, records: list[session_rows.SessionRecord]) -> None:
        """How these sessions' workers call themselves."""
        if len(self._workers) > 10_000:
            self._workers.clear()
        self._workers.update({record.session_id: record.worker_id for record in records})

    # ── sweeping ──

    async def _sweep(self) -> None:
        """Ended leases, due tasks, old records, in every environment, also those that nobody asks for."""
        known: list[str] = []
        looked, forgot = float("-inf"), time.monotonic()
        while True:
            try:
                if time.monotonic() - looked > ENVIRONMENTS_REMEMBERED:
                    known, looked = await self.on("sweep", self._environments), time.monotonic()
                for environment_id in {*known, *self.stores.opened()}:  # those are new, or about to be known
                    if environment_id not in self._tidying:
                        self._tidying[environment_id] = asyncio.create_task(self._tidy(environment_id))
                if time.monotonic() - forgot > FORGET_EVERY:
                    forgot = time.monotonic()
                    await self.on("sweep", self._forget_sessions)
            except (TaskMQError, TimeoutError) as error:
                log.warning("sweeping: %s", error)
            await asyncio.sleep(SWEEP)

    async def _tidy(self, environment_id: str) -> None:
        try:
            if await self.on_behalf(environment_id, "sweep", self._maintain, environment_id):
                self.claims.wake_all(environment_id)
        except (TaskMQError, TimeoutError, RuntimeError) as error:
            log.warning("sweeping %s: %s", environment_id, error)
        finally:
            del self._tidying[environment_id]

    def _environments(self) -> list[str]:
        with self.database.read() as connection:
            return list(connection.execute(select(environments.c.environment_id)).scalars())

    def _maintain(self, environment_id: str) -> bool:
        done = self.stores.of(environment_id).maintain(Maintain())
        return bool(done.promoted or done.reaped)

    def _forget_sessions(self) -> None:
        with self.database.write() as connection:
            session_rows.forget_old(connection, time.time_ns() // 1000 - SESSIONS_KEPT)

    # ── steps ──

    def stepper(self, environment_id: str) -> Stepper:
        """Where all connections of an environment have their steps done."""
        found = self.steppers.get(environment_id)
        if found is None:
            found = self.steppers[environment_id] = Stepper(self, environment_id)
        return found

    # ── health ──

    def store_of(self, identity: Identity) -> ServingStore:
        """The store of a caller's environment."""
        return self.stores.of(identity.environment_id)

    async def checks(self) -> dict[str, bool]:
        """What must hold to be ready."""
        checks = {"store": False, "migrations": False, "pool": not self.closing and not self.claims.pool.closing}
        with contextlib.suppress(TaskMQError, TimeoutError):
            status = await self.on("http", migrations.status, self.database)
            checks |= {"store": True, "migrations": not status.pending}
        return checks
