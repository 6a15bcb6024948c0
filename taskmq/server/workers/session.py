"""A worker's session on this node: what it can run, what it holds, how much room is left.

The store is the truth about what a session holds; this is a copy that makes capacity cheap to ask for. It forgets a
delivery when its lease must be over, so that a worker that lost one gets its room back without saying so.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from taskmq import codec
from taskmq.codec import RetryWire
from taskmq.errors import InvalidArgument
from taskmq.message import Delivery
from taskmq.policy.retry import Retry
from taskmq.server.permissions import Identity

if TYPE_CHECKING:
    from taskmq.server.workers.connection import Connection

SLACK = 1.5
"""Seconds after the end of a lease at which the sweeper has taken it back."""

Token = tuple[str, int]


@dataclass(slots=True)
class HeldTask:
    """A delivery in the session's hands. ``until``: monotonic time at which it must be over, if nothing renews it."""

    queue_id: str
    lease: int
    """Microseconds of its queue's lease."""
    until: float
    started: bool = False
    attempt: int = 1
    timeout: int | None = None
    deadline: int | None = None
    """Of its task, in the store's time."""
    over_at: float = float("inf")
    """Monotonic time at which its attempt has taken too long; ``over``: by what."""
    over: Literal["timeout", "deadline"] = "timeout"
    retry: RetryWire | None = None
    progressed: float = 0.0
    bound: bool = True
    """Its end may let others go: it stands in a partition or has a resource key; or it is not known."""

    def begun(self, ago: int, now: int) -> None:
        """It was started so many microseconds ago; it is ``now`` in the store's time."""
        left = float("inf") if self.timeout is None else self.timeout - ago
        if self.deadline is not None and self.deadline - now < left:
            left, self.over = self.deadline - now, "deadline"
        self.over_at = time.monotonic() + left / 1e6


@dataclass(slots=True, eq=False)
class Session:
    """One session; ``connection`` is None while its worker is away."""

    session_id: str
    identity: Identity
    token: str
    worker_id: str
    capabilities: frozenset[tuple[str, str]]
    capacity: int
    keys: bool
    connection: Connection | None = None
    draining: bool = False
    drain_ref: int | None = None
    held: dict[Token, HeldTask] = field(default_factory=dict)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    seen: float = field(default_factory=time.monotonic)

    @property
    def environment_id(self) -> str:
        """Where it works."""
        return self.identity.environment_id

    def room(self) -> int:
        """How many more tasks it can take."""
        now = time.monotonic()
        for token in [token for token, held in self.held.items() if held.until < now]:
            del self.held[token]
        return self.capacity - len(self.held)

    def take(self, delivery: Delivery, queue_lease: int, reserve: int) -> HeldTask:
        """A delivery is about to be sent."""
        held = held_of(delivery.body, delivery.queue, queue_lease, reserve)
        held.attempt, held.deadline = delivery.attempt, delivery.deadline_at
        held.bound = delivery.partition is not None or delivery.limit_key is not None
        self.held[delivery.id, delivery.epoch] = held
        return held

    def drop(self, token: Token) -> None:
        """It holds this one no more."""
        if self.held.pop(token, None) is not None:
            self.freed.set()


def held_of(body: bytes, queue_id: str, lease: int, lasts: int) -> HeldTask:
    """What must be remembered of a task; ``lease`` and ``lasts`` in microseconds."""
    held = HeldTask(queue_id, lease, until_of(lasts))
    try:
        envelope = codec.decode(body)
    except InvalidArgument:
        return held
    held.timeout, held.retry = envelope.timeout, envelope.retry
    return held


def until_of(lasts: int) -> float:
    """The monotonic time at which something that lasts so many microseconds has been taken back."""
    return time.monotonic() + lasts / 1e6 + SLACK


def policy_of(wire: RetryWire | None) -> Retry:
    """The retry policy of a task."""
    if wire is None:
        return Retry()
    fields = msgspec.structs.asdict(wire)
    return Retry(backoff=fields["backoff"], base=wire.base, cap=wire.cap, jitter=wire.jitter)
