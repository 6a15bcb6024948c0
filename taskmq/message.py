"""The two values that travel between app, store and worker: Message (published) and Delivery (claimed)."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from taskmq.durations import Moment
from taskmq.queue import Limit, Partition

DAY = 86400 * 1_000_000
DEFAULT_RETENTION_OK = DAY
DEFAULT_RETENTION_BAD = 7 * DAY
DEFAULT_MAX_ATTEMPTS = 3


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A task to be published. Built and checked by the app; a store takes it as it is.

    ``body`` is the encoded Envelope (codec.py): opaque to stores. ``version`` belongs to the handler's name where
    claims name what they can run. Durations are microseconds.
    """

    id: str
    queue: str
    handler: str
    body: bytes
    version: str = ""
    priority: int = 0
    run_after: Moment | None = None
    partition: Partition | None = None
    key: str | None = None
    key_ttl: int | None = None
    key_until: str = "retention"
    expires: Moment | None = None
    deadline: Moment | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    limit: Limit | None = None
    retention: int | None = None
    tags: tuple[str, ...] = ()
    content: str | None = None
    """Another word for "same content", of who publishes for others; compared instead of all that follows here."""

    def digest(self) -> str:
        """What "same content" means for an idempotency key: everything but id and key; a default counts as absent."""
        if self.content is not None:
            return hashlib.blake2b(self.content.encode(), digest_size=16).hexdigest()
        partition = self.partition
        now = self.run_after == Moment(0, relative=True)
        content = (
            (self.handler, self.version) if self.version else self.handler,
            self.body,
            self.priority,
            None if now else self.run_after,
            (partition.code, partition.weight, partition.max_running) if partition else None,
            self.expires,
            self.deadline,
            self.max_attempts,
            (self.limit.key, self.limit.n) if self.limit else None,
            self.retention,
            self.tags,
        )
        return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).hexdigest()


class Delivery(msgspec.Struct, kw_only=True):
    """A leased task in a worker's hands.

    ``attempt``      the number this execution has if it is started
    ``epoch``        the fencing token: a settle is applied only while the store still knows this epoch
    ``lease_until``  store time, microseconds; the worker renews by its own monotonic clock
    ``aging``        the task's queue is an aging one: it keeps claim order whatever its priority
    ``token``        the store's own handle; opaque
    """

    id: str
    queue: str
    handler: str
    body: bytes
    priority: int
    attempt: int
    max_attempts: int
    epoch: int
    lease_until: int
    lease: int
    partition: str | None = None
    aging: bool = False
    expires_at: int | None = None
    deadline_at: int | None = None
    created_at: int = 0
    available_at: int = 0
    version: str = ""
    limit_key: str | None = None
    token: Any = None

    @property
    def ordered(self) -> bool:
        """Whether it belongs to an ordered partition."""
        return self.partition is not None and self.partition.startswith("!")
