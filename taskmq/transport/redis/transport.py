"""The Redis store: one verb, one script. Essay: why the rule lives in Lua.

Whose turn it is depends on what every other worker has just taken, so choosing and taking must be one step. A server
that runs one script at a time gives that for nothing; to choose in the client would need a lock, or a repair for each
lost race. So ``lua/`` is a twin of the memory store and of ``taskmq.policy``, file by file, checked by the same vectors
and by random programs that compare every answer with the memory store's.

What keeps the twin honest and quick:

* *Read, decide, write.* A script's body only reads; what it changes stands in Lua tables, and its last act turns them
  into commands (``lua/include/commit.lua``). A script that fails has changed nothing. No command's reply is used after
  that, so the same files run in this process where a server forbids scripts (``?lua=off``).
* *Little to read.* One string for each queue says whether it has partitions, limits, or something due; what it does not
  have costs nothing. Lines and turns are read a page at a time, as far as the decision depends on them.
* *Nothing for a free partition.* It is in its queue's turns with its tag as the score, and has a line; only one that
  runs, waits or was given a weight has a word of state.
* *A record is one string.* A hash with a field for each value costs three times the memory and half again the time.

Times are microseconds, exact in Lua's doubles until the year 2255. A rate's bucket is counted in lowest terms; only
bursts beyond 10^15 units would be rounded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from taskmq.clock import Clock
from taskmq.errors import IdempotencyConflict, QueueFull, TaskMQError
from taskmq.message import Message
from taskmq.queue import QueueConfig
from taskmq.transport.base import (
    PUBLISH_BATCH,
    Capabilities,
    Extend,
    Maintain,
    Maintained,
    Publish,
    Receipt,
    Renewal,
    Renewed,
    Reserve,
    Reserved,
    Settle,
    Wait,
    WorkerInfo,
)
from taskmq.transport.group import Call, Group
from taskmq.transport.redis import records
from taskmq.transport.redis.inspect import CONFIGURE, WORKER, RedisInspect
from taskmq.transport.redis.keys import WORKERS, lock_home
from taskmq.transport.redis.runner import Runner
from taskmq.transport.redis.scripts import script
from taskmq.transport.redis.wakeup import Wakeup
from taskmq.transport.settings import check_room, config_drift

BATCH = 200
"""Most of each kind that one maintain does in a queue; the script has a bound of its own."""
TOGETHER = 50
"""How many queues are tidied in one exchange."""

PUBLISH, RESERVE, SETTLE, EXTEND = script("publish"), script("reserve"), script("settle"), script("extend")
TIDY, HAS_WORK, LOCK = script("tidy"), script("has_work"), script("lock")


class RedisTransport(RedisInspect):
    """A store in Redis or Valkey."""

    name = "redis"
    capabilities = Capabilities(durable=True, shared=True)
    limitations: Mapping[str, str] = {}

    many = 50
    """From so many queues on a claim looks only at those known to have something; at all of them the first time.

    Then the server is told their names once, as a set, and afterwards only the set's digest.
    """

    def __init__(self, runner: Runner, namespace: str = "default", clock: Clock | None = None) -> None:
        """``clock`` overrides the server's clock in tests."""
        super().__init__(runner, namespace, clock)
        self._wakeup = Wakeup(runner, self._prefix)
        self._publishes: Group[Sequence[Message], list[Receipt]] = Group(self._publish_together)

    # ── the hot path ──

    def publish(self, params: Publish) -> list[Receipt]:
        """Store the messages, all or none."""
        return self._publishes.call(params.messages) if params.messages else []

    def _publish_together(self, calls: Sequence[Call[Sequence[Message], list[Receipt]]]) -> None:
        """Publishes that come together share a script; where it refuses one, each is stored or refused for itself."""
        if len(calls) > 1 and self._publish_as_one(calls):
            return
        scripts = [self._call(PUBLISH, *records.batch(call.wish), home="") for call in calls]
        for call, answer in zip(calls, self._replies(scripts, again=True), strict=True):
            try:
                call.answer(receipts(call.wish, answer))
            except TaskMQError as error:
                call.error = error

    def _publish_as_one(self, calls: Sequence[Call[Sequence[Message], list[Receipt]]]) -> bool:
        """Store what several publishes bring with one script; False: they are too many, or one of them is refused."""
        together = [message for call in calls for message in call.wish]
        if len(together) > PUBLISH_BATCH:
            return False
        answer = self._run(PUBLISH, *records.batch(together), home="", again=True)
        if _refused(answer):
            return False
        found = receipts(together, answer)
        for call in calls:
            call.answer(found[: len(call.wish)])
            found = found[len(call.wish) :]
        return True

    def reserve(self, params: Reserve) -> Reserved:
        """Claim the next tasks by the claim rule."""
        return self._reserved(params, self._run(RESERVE, *self._reserve_args(params), home=""))

    def _reserved(self, params: Reserve, answer: Sequence[bytes]) -> Reserved:
        """What a claim answered; asked again with all names when the server knows no set of this digest."""
        if answer[0] == b"?":
            answer = self._run(RESERVE, *self._reserve_args(params, named=True), home="")
        return reserved(answer)

    def _reserve_args(self, params: Reserve, *, named: bool = False) -> list[Any]:
        """``named``: the queues are named, although a digest would do if the server knew it."""
        queues, look = params.queues, 0
        if len(queues) >= self.many:
            digest = self._seen.get(together := tuple(queues))
            if digest is None:
                self._seen[together] = _digest(together)
            elif named:
                look, queues = 1, (digest, *queues)
            else:
                look, queues = 2, (digest,)
        return [*self._claim_args(params, params.limit, look=look), *queues]

    def _claim_args(self, params: Reserve, limit: int, *, look: int = 0, plan: str = "", batch: str = "") -> list[Any]:
        """The arguments of a claim (``lua/reserve.lua``), but for the queues at their end."""
        pairs = params.handlers
        return [
            limit,
            params.lease,
            msgspec.json.encode(params.worker),
            batch or os.urandom(6).hex(),
            int(params.keys),
            -1 if pairs is None else len(pairs),
            look,
            plan,
            *(f"{handler}\0{version}" for handler, version in pairs or ()),
        ]

    def settle(self, params: Settle) -> list[bool]:
        """End deliveries, in order."""
        if not params.items:
            return []
        return accepted(self._run(SETTLE, *records.settlements(params.items), home=""))

    def settle_and_reserve(self, settle: Settle, reserve: Reserve) -> tuple[list[bool], Reserved]:
        """Both in one round trip."""
        if not settle.items:
            return [], self.reserve(reserve)
        settled, claimed = self._replies(
            [
                self._call(SETTLE, *records.settlements(settle.items), home=""),
                self._call(RESERVE, *self._reserve_args(reserve), home=""),
            ]
        )
        return accepted(settled), self._reserved(reserve, claimed)

    def extend(self, params: Extend) -> list[Renewed]:
        """Renew leases and mark started tasks."""
        if not params.items:
            return []
        args = [arg for item in params.items for arg in renewal(item)]
        return [renewed(answer) for answer in self._run(EXTEND, *args, home="", again=True)]

    # ── housekeeping ──

    def maintain(self, params: Maintain) -> Maintained:
        """One bounded round over all queues."""
        limit = params.limit or BATCH
        promoted = reaped = deleted = 0
        more = False
        names = self._queues()
        for at in range(0, len(names), TOGETHER):
            calls = [self._call(TIDY, name, limit, home=self._home(name)) for name in names[at : at + TOGETHER]]
            for done in self._replies(calls, again=True):
                promoted, reaped, deleted = promoted + done[0], reaped + done[1], deleted + done[3]
                more = more or done[4] == 1
        return Maintained(promoted=promoted, reaped=reaped, deleted=deleted, more=more or deleted >= limit)

    def wait(self, params: Wait) -> bool:
        """Block until a task of these queues can be claimed."""

        def look() -> tuple[bool, float | None]:
            work, due = self._run(HAS_WORK, *params.queues, home="", again=True)
            return bool(work), (int(due) - self.now()) / 1e6 if due else None

        return self._wakeup.wait(params.queues, params.timeout, look)

    def wake(self) -> None:
        """Make every blocked ``wait`` return now."""
        self._wakeup.wake()

    # ── named leases, workers, settings ──

    def lock(self, name: str, owner: str, ttl: int) -> bool:
        """Take or renew a named lease."""
        return bool(self._run(LOCK, "lock", name, owner, ttl, home=self._other_home(lock_home(name)), again=True))

    def unlock(self, name: str, owner: str) -> None:
        """Give a named lease back."""
        self._run(LOCK, "unlock", name, owner, home=self._other_home(lock_home(name)), again=True)

    def heartbeat(self, worker: WorkerInfo, ttl: int) -> None:
        """Write the worker's row."""
        self._run(
            WORKER,
            "heartbeat",
            worker.id,
            msgspec.json.encode(asdict(worker)),
            ttl,
            home=self._other_home(WORKERS),
            again=True,
        )

    def forget(self, worker_id: str) -> None:
        """Remove a worker's row."""
        self._run(WORKER, "forget", worker_id, home=self._other_home(WORKERS), again=True)

    def configure_queues(self, queues: Mapping[str, QueueConfig], overwrite: bool = False) -> dict[str, list[str]]:
        """Seed queues that were never configured; returns drift."""
        if not queues:
            return {}
        how = "overwrite" if overwrite else "seed"
        calls = [
            self._call(CONFIGURE, how, name, records.conf(config), home=self._home(name))
            for name, config in queues.items()
        ]
        drift: dict[str, list[str]] = {}
        for (name, wanted), (text,) in zip(queues.items(), self._replies(calls, again=True), strict=True):
            if text and not overwrite:
                known = records.config(text)
                if differs := config_drift(wanted, known, known.paused):
                    drift[name] = differs
        return drift

    def close(self) -> None:
        """Close all connections; a blocked ``wait`` returns."""
        if not self._runner.closed:
            self._wakeup.wake()
        self._runner.close()


def _digest(queues: Sequence[str]) -> str:
    """What names a set of queues."""
    return hashlib.blake2b(msgspec.json.encode(sorted(set(queues))), digest_size=16).hexdigest()


def receipts(messages: Sequence[Message], answer: Sequence[bytes]) -> list[Receipt]:
    """What a publish answered, nothing if all are new; raises what it refused."""
    if not any(answer):
        return [Receipt(message.id, False) for message in messages]
    if _refused(answer):
        raise _refusal(answer)
    return [
        Receipt(holder.decode(), True) if holder else Receipt(message.id, False)
        for message, holder in zip(messages, answer, strict=True)
    ]


def _refused(answer: Sequence[bytes]) -> bool:
    return bool(answer) and answer[0][:1] == b"!"


def _refusal(answer: Sequence[bytes]) -> TaskMQError:
    what, *words = (word.decode() for word in answer)
    if what == "!full":
        name, most, queued, more = words
        try:
            check_room(name, int(most), int(queued), int(more))
        except QueueFull as full:
            return full
    key, task_id, queue = words
    return IdempotencyConflict(
        f"key {key!r} of queue {queue!r} is taken by task {task_id} with different content", key=key, task_id=task_id
    )


def reserved(answer: Sequence[bytes]) -> Reserved:
    """What a claim answered."""
    more, due = answer[0] == b"1", int(answer[1]) if answer[1] else None
    if len(answer) == 2:
        return Reserved(deliveries=[], more=more, next_due=due)
    leases: dict[str, tuple[int, bool]] = {}
    at = 2
    while answer[at]:
        leases[answer[at].decode()] = int(answer[at + 1]), answer[at + 2] == b"1"
        at += 3
    deliveries = [records.delivery(answer[i + 1].decode(), answer[i], leases) for i in range(at + 1, len(answer), 2)]
    return Reserved(deliveries=deliveries, more=more, next_due=due)


def accepted(answer: bytes) -> list[bool]:
    """What a settle answered."""
    return [letter == 49 for letter in answer]


def renewal(item: Renewal) -> tuple[str, str, bytes]:
    """The arguments of one extend."""
    delivery, news = item.delivery, item.progress
    progress = b"" if news is None else msgspec.json.encode(news)
    return delivery.id, f"{delivery.epoch},{delivery.lease},{int(item.started)}", progress


def renewed(answer: bytes) -> Renewed:
    """What it answered."""
    until, _, cancel = answer.partition(b",")
    return Renewed(int(until), cancel == b"1") if until else Renewed(None)
