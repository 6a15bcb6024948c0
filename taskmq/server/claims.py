"""The claim pool's driver: runs its statements on threads, its timer on the loop, and brings it the news.

A claim is a future here. News come from this process at once (``wake``: a publish, a settle, a resume), from the time
(the next due time that a zero answer named), and from other processes by a thread for each environment with parked
claims, which blocks in the store's ``wait`` (``listening.py``).

News must not be louder than they are. A connection may start four statements a second, and each piece of news that
leads to nothing spends one of them: a worker that is told twice of the same task may not ask for the next one. So a
settle is news only where it may have freed something, and a listener's word counts only in lanes whose last statement
had ended before it looked: elsewhere it may have seen what that one has taken, and will look again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskmq.errors import TaskMQError
from taskmq.message import Delivery
from taskmq.server.claim_pool import Accepted, Answer, Cancelled, ClaimPool, Empty, Error, Lane, Release, Start
from taskmq.server.listening import Listener
from taskmq.transport.base import Reserve, Reserved
from taskmq.transport.serving import HandBack

if TYPE_CHECKING:
    from taskmq.server.node import Node

log = logging.getLogger("taskmq.server")

STALE = 0.02
"""Seconds that a listener's look may take."""
MOST_LANES = 1000


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
    given_up: bool = False
    """Its worker was told that the store does not answer; what the statement takes all the same goes back."""


class Claims:
    """Claims of this node. All methods but those of threads run on the loop's thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.pool = ClaimPool(t0=time.monotonic())
        self._claims: dict[int, Claim] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due: dict[tuple[str, tuple[str, ...]], asyncio.TimerHandle] = {}
        self._listeners: dict[str, Listener] = {}
        self._ended: dict[Lane, float] = {}
        """When a lane's last statement ended."""
        self._loop: asyncio.AbstractEventLoop | None = None
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
        self._poll()
        return await claim.future

    def wake(self, environment: str, *queues: str) -> None:
        """Something may be claimable in these queues."""
        if self._claims:
            for queue in queues:
                self.pool.wake(time.monotonic(), environment, queue)
            self._poll()

    def arrived(self, environment: str, *queues: str) -> None:
        """The same, from any thread: the sooner, the shorter an idle worker waits."""
        if self._loop is not None and queues:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.wake, environment, *queues)

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
            if not self.pool.knows(request):
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
        self._listen()

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
            room = max(1, claim.room())
            found = await self._node.on_behalf(claim.environment, "claims", self._reserve, claim, room)
        except (TaskMQError, TimeoutError, RuntimeError) as error:
            claim.given_up = True
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
            if not actions and not self.pool.knows(request):
                self._claims.pop(request, None)
            if any(isinstance(action, Release) for action in actions):
                self.hand_back(claim, found.deliveries)
            self._expect(claim, found)
        if len(self._ended) > MOST_LANES:
            self._ended.clear()
        self._ended[claim.environment, claim.queues] = time.monotonic()
        self._poll()

    def _reserve(self, claim: Claim, room: int) -> Reserved:
        store = self._node.stores.of(claim.environment)
        found = store.reserve(
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
        if claim.given_up and found.deliveries:
            store.steps(claim.session, [HandBack(delivery.id, delivery.epoch) for delivery in found.deliveries])
        return found

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
            await self._node.on_behalf(claim.environment, "steps", store.steps, claim.session, steps)
        except (TaskMQError, TimeoutError, RuntimeError) as error:
            log.warning("claimed tasks could not be handed back; their reservation ends: %s", error)
            return
        self._node.metrics.handed_back.inc(len(steps))
        self.wake(claim.environment, *claim.queues)

    def _queues_of(self, environment: str) -> set[str]:
        return {queue for claim in self._claims.values() if claim.environment == environment for queue in claim.queues}

    # ── news of other processes ──

    def start(self) -> None:
        """Called on the loop, before the first claim."""
        self._loop = asyncio.get_running_loop()

    def _listen(self) -> None:
        """Let a thread listen in each environment with parked claims, and in no other."""
        wanted: dict[str, set[str]] = {}
        for environment, queues in self.pool.hopeful():
            wanted.setdefault(environment, set()).update(queues)
        for environment in wanted.keys() - self._listeners.keys():
            self._hear(environment)
        for environment, listener in self._listeners.items():
            listener.listen(wanted.get(environment, ()))

    def _hear(self, environment: str) -> None:
        assert self._loop is not None
        loop = self._loop

        def heard(looked: float) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._heard, environment, looked)

        self._listeners[environment] = Listener(lambda: self._node.stores.of(environment), heard)

    def _heard(self, environment: str, looked: float) -> None:
        """A listener says that something may be there."""
        for lane in self.pool.hopeful():
            if lane[0] == environment and self._ended.get(lane, 0.0) < looked - STALE:
                self.wake(environment, *lane[1])
