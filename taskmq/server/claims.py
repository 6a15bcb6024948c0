"""The claim pool's driver: runs its statements on threads, its timer on the loop, and brings it the news.

A claim is a future here. News come from this process at once (``wake``: a publish, a settle, a resume), from the time
(the next due time that a zero answer named), and from other processes by a thread for each environment with waiting
claims, which blocks in the store's ``wait``. What that thread hears is not precise – a task may be claimable that none
of our claims can run – so it hears less and less often while it is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskmq.errors import TaskMQError
from taskmq.message import Delivery
from taskmq.server.claim_pool import Accepted, Answer, Cancelled, ClaimPool, Empty, Error, Release, Start
from taskmq.transport.base import Reserve, Reserved, Wait
from taskmq.transport.serving import HandBack

if TYPE_CHECKING:
    from taskmq.server.node import Node

log = logging.getLogger("taskmq.server")

LISTEN = 1.0
"""Seconds of one wait for other processes' news."""
QUIETEST = 1.0
"""Most seconds between two pieces of news that led to nothing."""


class ClaimRefused(Exception):
    """The pool did not take a claim: ``CLAIM_PENDING``, ``NODE_CLAIMS`` or ``SHUTTING_DOWN``."""


class Draining(Exception):
    """The node shuts down; the claim took nothing."""


@dataclass(slots=True)
class Claim:
    """What a worker wants. ``room``: how many tasks it can take at the moment of asking."""

    session: str
    application: str
    environment: str
    queues: tuple[str, ...]
    capabilities: frozenset[tuple[str, str]]
    keys: bool
    room: Callable[[], int]
    future: asyncio.Future[list[Delivery]] = field(default_factory=asyncio.Future)
    found: Reserved | None = None


class Claims:
    """Claims of this node. All methods but those of threads run on the loop's thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.pool = ClaimPool(t0=time.monotonic())
        self._claims: dict[int, Claim] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due: dict[tuple[str, tuple[str, ...]], asyncio.TimerHandle] = {}
        self._listeners: dict[str, _Listener] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, claim: Claim) -> list[Delivery]:
        """The tasks of a claim, none after about a cycle.

        Raises ClaimRefused, Draining, and what the statement raised.
        """
        request = self.pool.request(
            time.monotonic(),
            claim.session,
            claim.application,
            claim.environment,
            claim.queues,
            claim.capabilities,
            claim.keys,
            1,
        )
        if not isinstance(request, Accepted):
            raise ClaimRefused(request.code)
        self._claims[request.id] = claim
        self._listen(claim.environment)
        self._poll()
        return await claim.future

    def wake(self, environment: str, *queues: str) -> None:
        """Something may be claimable in these queues."""
        if self._claims:
            for queue in queues:
                self.pool.wake(time.monotonic(), environment, queue)
            self._poll()

    def wake_all(self, environment: str) -> None:
        """Something may be claimable anywhere in the environment."""
        self.wake(environment, *self._queues_of(environment))

    def gone(self, session: str) -> None:
        """The connection is gone."""
        self.pool.gone(time.monotonic(), session)
        for request in [r for r, claim in self._claims.items() if claim.session == session]:
            claim = self._claims[request]
            if not claim.future.done():
                claim.future.cancel()
            if request not in self.pool._requests:
                del self._claims[request]
        self._poll()

    def shutdown(self) -> None:
        """No more statements; what waits is told."""
        self._act(self.pool.shutdown(time.monotonic()))
        self._poll()

    async def landed(self) -> None:
        """Wait until no statement is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Stop timers and threads."""
        for timer in (self._timer, *self._due.values()):
            if timer is not None:
                timer.cancel()
        for listener in self._listeners.values():
            listener.stop()

    # ── inside ──

    def _poll(self) -> None:
        now = time.monotonic()
        self._act(self.pool.poll(now))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self.pool.next_timer(now)
        if when is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, when - now) + 0.0005, self._poll)

    def _act(self, actions: object) -> None:
        assert isinstance(actions, list)
        for action in actions:
            if isinstance(action, Start):
                task = asyncio.create_task(self._statement(action.id, self._claims[action.id]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            claim = self._claims.pop(action.id, None)
            if claim is None or claim.future.done():
                if claim is not None and claim.found is not None:
                    self.hand_back(claim, claim.found.deliveries)
                continue
            if isinstance(action, Answer):
                assert claim.found is not None
                claim.future.set_result(claim.found.deliveries)
            elif isinstance(action, Empty):
                claim.future.set_result([])
            elif isinstance(action, Cancelled):
                claim.future.set_exception(Draining())
            else:
                assert isinstance(action, (Release, Error))

    async def _statement(self, request: int, claim: Claim) -> None:
        """One claim's statement, and what the pool makes of its answer."""
        started = time.monotonic()
        try:
            found = await self._node.on("claims", self._reserve, claim, max(1, claim.room()))
        except (TaskMQError, TimeoutError, RuntimeError) as error:
            failed = self._claims.get(request)
            actions = self.pool.fail(time.monotonic(), request, error)
            if failed is not None and not failed.future.done():
                failed.future.set_exception(error)
            self._act(actions)
            self._claims.pop(request, None)
        else:
            self._node.metrics.statements.observe(time.monotonic() - started)
            claim.found = found
            actions = self.pool.complete(time.monotonic(), request, len(found.deliveries))
            if not found.deliveries and found.more:
                self.pool.wake(time.monotonic(), claim.environment, claim.queues[0])
            self._act(actions)
            if not actions and request not in self.pool._requests:
                self._claims.pop(request, None)
            if any(isinstance(action, Release) for action in actions):
                self.hand_back(claim, found.deliveries)
            self._expect(claim, found)
        self._poll()

    def _reserve(self, claim: Claim, room: int) -> Reserved:
        return self._node.stores.of(claim.environment).reserve(
            Reserve(
                queues=claim.queues,
                limit=room,
                worker=claim.session,
                lease=self._node.settings.reserve_ms * 1000,
                handlers=tuple(claim.capabilities),
                keys=claim.keys,
                reservation=True,
            )
        )

    def _expect(self, claim: Claim, found: Reserved) -> None:
        """Look again when something falls due."""
        if found.next_due is None:
            return
        lane = (claim.environment, claim.queues)
        known = self._due.pop(lane, None)
        if known is not None:
            known.cancel()
        delay = max(0.0, found.next_due / 1e6 - time.time())
        if delay < 3600:
            wake = asyncio.get_running_loop().call_later(delay + 0.001, self._fell_due, lane)
            self._due[lane] = wake

    def _fell_due(self, lane: tuple[str, tuple[str, ...]]) -> None:
        self._due.pop(lane, None)
        self.wake(lane[0], *lane[1])

    def hand_back(self, claim: Claim, deliveries: list[Delivery]) -> None:
        """Return what was claimed and cannot be sent."""
        if deliveries:
            task = asyncio.create_task(self._hand_back(claim, deliveries))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hand_back(self, claim: Claim, deliveries: list[Delivery]) -> None:
        steps = [HandBack(delivery.id, delivery.epoch) for delivery in deliveries]
        store = self._node.stores.of(claim.environment)
        try:
            await self._node.on("steps", store.steps, claim.session, steps)
        except (TaskMQError, TimeoutError, RuntimeError) as error:
            log.warning("claimed tasks could not be handed back; their reservation ends: %s", error)
            return
        self._node.metrics.handed_back.inc(len(steps))
        self.wake(claim.environment, *claim.queues)

    def _queues_of(self, environment: str) -> set[str]:
        return {queue for claim in self._claims.values() if claim.environment == environment for queue in claim.queues}

    # ── news of other processes ──

    def _listen(self, environment: str) -> None:
        listener = self._listeners.get(environment)
        if listener is None or not listener.alive:
            self._listeners[environment] = listener = _Listener(self, environment, asyncio.get_running_loop())
        listener.queues = tuple(sorted(self._queues_of(environment)))

    def heard(self, environment: str) -> None:
        """A listener says that something may be there."""
        self.wake_all(environment)
        self._listeners[environment].queues = tuple(sorted(self._queues_of(environment)))


class _Listener:
    """A thread that waits in one environment's store while there are claims."""

    def __init__(self, claims: Claims, environment: str, loop: asyncio.AbstractEventLoop) -> None:
        self._claims = claims
        self._environment = environment
        self._loop = loop
        self._stopped = threading.Event()
        self.queues: tuple[str, ...] = ()
        self.alive = True
        threading.Thread(target=self._run, name="taskmq-listen", daemon=True).start()

    def stop(self) -> None:
        """End soon."""
        self._stopped.set()

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._stopped.wait(pause):
                if not self.queues:
                    pause = 0.05
                    continue
                began = time.monotonic()
                store = self._claims._node.stores.of(self._environment)
                if store.wait(Wait(queues=self.queues, timeout=LISTEN)):
                    self._loop.call_soon_threadsafe(self._claims.heard, self._environment)
                    quick = time.monotonic() - began < 0.05
                    pause = min(QUIETEST, max(0.01, pause * 2)) if quick else 0.005
                else:
                    pause = 0.0
        except (TaskMQError, RuntimeError) as error:  # the store is away or closed, the loop is gone
            log.debug("listening ended: %s", error)
        finally:
            self.alive = False
