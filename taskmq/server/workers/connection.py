"""One WebSocket of a worker. Essay: what may wait for what.

Three things happen on a connection at once. The *reader* takes one message after the other and never waits for the
database: it answers what needs none, and hands the rest on. *Steps* – start, finish, release – of one connection are
done in the order in which they came, as many at once as have come meanwhile, together with those of other connections
(``stepping.py``); nothing about one task overtakes anything else about it. *Renewals* go their own way on threads of
their own, so that neither a slow finish nor a full line of claims can make a lease end; one without items needs no
database at all. A *claim* is a task of its own that may wait in the pool for as long as its turn takes.

Replies leave through one outbound line. A client that does not read fills it; beyond 256 messages or 4 MiB its claims
wait, beyond 64 unanswered requests nothing more is read from it – the socket's own flow control then stops it – and
when nothing has been written for 30 s the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from starlette.types import Receive, Send

from taskmq.errors import TaskMQError
from taskmq.server.errors import ApiError, as_api_error, invalid
from taskmq.server.stepping import MOST_STEPS, Result
from taskmq.server.workers import messages, steps
from taskmq.server.workers.claiming import claim_tasks
from taskmq.server.workers.outbound import Outbound
from taskmq.server.workers.renewing import renew
from taskmq.server.workers.session import Session
from taskmq.transport.serving import HandBack
from taskmq.wire import strict
from taskmq.wire.codes import MAX_MESSAGE

if TYPE_CHECKING:
    from taskmq.server.workers.hub import Hub

log = logging.getLogger("taskmq.server")

MAX_UNANSWERED = 64
MAX_ERRORS, ERRORS_WITHIN = 10, 60.0
"""So many refused messages in so many seconds end a connection."""
DRAINED_LINGERS = 30.0

Reply = dict[str, Any]
Work = steps.Step | Reply
"""What a message asks of the store; or, where that is refused, the reply."""


class Closed(Exception):
    """The connection is to be closed with this code and word."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Connection:
    """A worker's WebSocket, from after the upgrade to its end."""

    def __init__(self, hub: Hub, receive: Receive, send: Send, token: str | None, peer: str) -> None:
        self.hub = hub
        self.node = hub.node
        self.token = token
        self.peer = peer
        self.session: Session | None = None
        self.opened = self.heard = time.monotonic()
        self.drained_at: float | None = None
        self._receive = receive
        self._send = send
        self._closing: Closed | None = None
        self.greeted = False
        self._reader: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self.unanswered = 0
        self._last_ref = 0
        self.outbound = Outbound(send)
        self._steps: deque[tuple[messages.Message, list[Work]]] = deque()
        self._has_steps = asyncio.Event()
        self._errors: deque[float] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.claiming: asyncio.Task[None] | None = None

    # ── life ──

    async def serve(self) -> None:
        """Until one of the two sides closes it."""
        writer = asyncio.create_task(self.outbound.run())
        stepper = asyncio.create_task(self._step())
        reader = self._reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait((reader, writer, stepper), return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, writer, stepper):
                if task.done() and not task.cancelled() and task.exception() is not None:
                    self._note_end(task.exception())
        finally:
            await self._end(reader, writer, stepper)

    def _note_end(self, error: BaseException | None) -> None:
        if isinstance(error, Closed):
            self._closing = self._closing or error
        elif not isinstance(error, (ConnectionError, OSError)):
            log.error("a worker's connection failed", exc_info=error)
            self._closing = self._closing or Closed(1011, "INTERNAL")

    async def _end(self, reader: asyncio.Task[Any], writer: asyncio.Task[Any], stepper: asyncio.Task[Any]) -> None:
        self.hub.left(self)
        for task in (reader, stepper, *self._tasks):
            task.cancel()
        if self._closing is not None:
            await self.outbound.flushed(writer)
            with contextlib.suppress(Exception):
                code, reason = self._closing.code, self._closing.reason
                message = {"type": "websocket.close", "code": code, "reason": reason}
                await asyncio.wait_for(self._send(message), 1.0)
        writer.cancel()
        await asyncio.gather(reader, writer, stepper, *self._tasks, return_exceptions=True)

    def close(self, code: int, reason: str = "") -> None:
        """Close it from outside its own tasks."""
        if self._closing is None:
            self._closing = Closed(code, reason)
        if self._reader is not None:
            self._reader.cancel()

    # ── writing ──

    def say(self, message: Reply) -> None:
        """Send a message after those before it."""
        self.outbound.put(strict.pack(message))

    def answer(self, kind: str, ref: int, fields: Reply) -> None:
        """The final reply to a request; an ``error`` among the fields makes it one."""
        self.answered()
        error = fields.get("error")
        if isinstance(error, ApiError):
            named: Reply = {name: fields[name] for name in ("task_id", "epoch") if name in fields}
            self.say({"type": "error", "ref": ref, **error.body(), **named})
        else:
            self.say({"type": kind, "ref": ref, **fields})

    def answered(self) -> None:
        """A request got its final reply."""
        self.unanswered -= 1
        self._answered.set()

    def fail(self, ref: int, error: BaseException, message: messages.Message | None = None) -> None:
        """An error as the final reply; it names the delivery that the message is about, if that is one."""
        known = as_api_error(error)
        if known.code == "INTERNAL":
            log.error("a worker's request failed", exc_info=error)
        named = {name: getattr(message, name, UNSET) for name in ("task_id", "epoch")}
        self.answer("error", ref, {"error": known, **{n: value for n, value in named.items() if value is not UNSET}})

    # ── reading ──

    async def _read(self) -> None:
        while self._closing is None:
            while self.unanswered >= MAX_UNANSWERED:
                self._answered.clear()
                await self._answered.wait()
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                raise ConnectionResetError
            await self._take(event)

    async def _take(self, event: Any) -> None:
        """One frame."""
        text = event.get("text")
        if text is None:
            raise Closed(1003, "BINARY")
        data = text.encode()
        if len(data) > MAX_MESSAGE:
            raise Closed(1009, "TOO_BIG")
        self.heard = time.monotonic()
        value = None
        try:
            value = strict.loads(data)
            message = messages.read(value)
        except (ApiError, strict.NotStrict) as error:
            if self.session is None and not (isinstance(value, dict) and value.get("type") == "hello"):
                raise self._too_early() from None
            self._refuse(self._ref_of(value), error)
            return
        if isinstance(message, messages.Hello):
            self.greeted = True
            await self._hello(message)
            return
        if self.session is None:
            raise self._too_early()
        if message.ref <= self._last_ref:
            self._refuse(None, invalid("the ref does not grow", "ref"))
            return
        self._last_ref = message.ref
        self.unanswered += 1
        self.session.seen = self.heard
        try:
            self._dispatch(self.session, message)
        except ApiError as error:
            self.fail(message.ref, error, message)

    def _too_early(self) -> Closed:
        """There was no hello."""
        return Closed(1008, "UNAUTHENTICATED" if self.token is None else "PERMISSION_DENIED")

    @staticmethod
    def _ref_of(value: Any) -> int | None:
        ref = value.get("ref") if isinstance(value, dict) else None
        return ref if type(ref) is int and 1 <= ref < 2**53 else None

    def _refuse(self, ref: int | None, error: BaseException) -> None:
        """A message that cannot be read; too many of them end the connection."""
        now = time.monotonic()
        self._errors.append(now)
        while self._errors[0] < now - ERRORS_WITHIN:
            self._errors.popleft()
        known = as_api_error(error)
        self.say({"type": "error", **({} if ref is None else {"ref": ref}), **known.body()})
        if len(self._errors) >= MAX_ERRORS:
            raise Closed(1008, "TOO_MANY_ERRORS")
        if ref is not None:
            self._last_ref = max(self._last_ref, ref)

    async def _hello(self, message: messages.Hello) -> None:
        if self.session is not None:
            self.say({"type": "error", **invalid("there was a hello already", "type").body()})
            raise Closed(1002, "SECOND_HELLO")
        if message.protocol != 1:
            self.say({"type": "error", **invalid("this server speaks protocol 1", "protocol").body()})
            raise Closed(1008, "UNSUPPORTED_PROTOCOL")
        try:
            welcome = await self.hub.welcome(self, message)
        except (ApiError, TaskMQError, TimeoutError) as error:
            known = as_api_error(error)
            self.say({"type": "error", **known.body()})
            word = known.code if known.code in ("UNAUTHENTICATED", "PERMISSION_DENIED") else "INTERNAL"
            raise Closed(1008 if word != "INTERNAL" else 1011, word) from None
        self.say({"type": "welcome", **welcome})

    def _dispatch(self, session: Session, message: messages.Message) -> None:
        if isinstance(message, messages.Claim):
            self._claim(session, message)
        elif isinstance(message, messages.Renew):
            if message.items:
                self._spawn(self._renew(session, message.ref, message.items, {}))
            else:
                fields = {"lease_ms": steps.DEFAULT_LEASE // 1000, "lost": [], "cancel": []}
                self.answer("renewed", message.ref, fields)
        elif isinstance(message, messages.Progress):
            item = messages.Item(message.task_id, message.epoch)
            held = session.held.get((item.task_id, item.epoch))
            news = steps.merged_progress(held, message.done, message.total, message.note)
            progress = {} if news is None else {(item.task_id, item.epoch): news}
            self._spawn(self._renew(session, message.ref, [item], progress))
        elif isinstance(message, messages.Drain):
            self._drain(session, message.ref)
        elif isinstance(message, messages.Start):
            work: list[Work] = [steps.begin(session, item) for item in messages.started_items(message)]
            self._queue(message, work)
        elif isinstance(message, messages.Finish):
            self._queue(message, self._ends(session, message))
        elif isinstance(message, messages.Release):
            self._queue(message, [HandBack(item.task_id, item.epoch) for item in message.items])

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ── claims ──

    def _claim(self, session: Session, message: messages.Claim) -> None:
        if self.claiming is not None and not self.claiming.done():
            details = {"state": "claim_pending"}
            raise ApiError("FAILED_PRECONDITION", "a claim of this connection is pending", details=details)
        if message.n > session.capacity:
            raise invalid("more than the worker's capacity", "n")
        self.claiming = self._spawn(claim_tasks(self, session, message))

    # ── steps ──

    def _ends(self, session: Session, message: messages.Finish) -> list[Work]:
        """The steps of a finish. One that is refused has its reply already, which keeps no other from its own."""
        work: list[Work] = []
        for index, item in enumerate(messages.finished_items(message)):
            try:
                messages.check_finish(item)
                work.append(steps.end(session, item, self.node.settings.max_payload))
            except ApiError as error:
                refusal = error if message.items is UNSET else error.at(f"items[{index}]")
                work.append({"task_id": item.task_id, "epoch": item.epoch, "error": refusal})
        return work

    def _queue(self, message: messages.Message, work: list[Work]) -> None:
        self._steps.append((message, work))
        self._has_steps.set()

    async def _step(self) -> None:
        """Do what has come, in order, as much at once as there is."""
        while True:
            while not self._steps:
                self._has_steps.clear()
                await self._has_steps.wait()
            batch: list[tuple[messages.Message, list[Work]]] = []
            count = 0
            while self._steps and (not batch or count + len(self._steps[0][1]) <= MOST_STEPS):
                batch.append(self._steps.popleft())
                count += len(batch[-1][1])
            assert self.session is not None
            await self._do(self.session, batch)

    async def _do(self, session: Session, batch: list[tuple[messages.Message, list[Work]]]) -> None:
        work = [step for _, wanted in batch for step in wanted if not isinstance(step, dict)]
        try:
            results = await self.node.stepper(session.environment_id).do(session.session_id, work) if work else []
        except (TaskMQError, TimeoutError, RuntimeError) as error:
            for message, _ in batch:
                self.fail(message.ref, error, message)  # type: ignore[union-attr]
            return
        news = [
            session.held.get((step.task_id, step.epoch))
            for step, (result, _) in zip(work, results, strict=True)
            if steps.frees(self.node, session, step, result)
        ]
        queues = {held.queue_id for held in news if held is not None and not held.bound}
        pairs = iter(zip(work, results, strict=True))
        for message, wanted in batch:
            replies = [step if isinstance(step, dict) else self._answer(session, *next(pairs)) for step in wanted]
            self._reply(message, replies)
        self.node.changes.tell(step.task_id for step in work)
        everywhere = any(held is None or held.bound for held in news)
        self.hub.freed(session, None if everywhere else queues)

    def _answer(self, session: Session, step: steps.Step, result: Result) -> Reply:
        return steps.answer(self.node, session, step, *result)

    def _reply(self, message: messages.Message, replies: list[Reply]) -> None:
        if isinstance(message, messages.Release):
            done = {"items": [], "unknown": []}  # type: ignore[var-annotated]
            for reply in replies:
                named = {"task_id": reply["task_id"], "epoch": reply["epoch"]}
                done["unknown" if "error" in reply else "items"].append(named)
            self.answer("released", message.ref, done)
            return
        assert isinstance(message, (messages.Start, messages.Finish))
        kind = "started" if isinstance(message, messages.Start) else "finished"
        if isinstance(message.items, list):
            items = [_item(reply) for reply in replies]
            self.answer(kind, message.ref, {"items": items})
        else:
            self.answer(kind, message.ref, replies[0])

    # ── renewals and drain ──

    async def _renew(self, session: Session, ref: int, items: list[messages.Item], progress: dict[Any, Any]) -> None:
        try:
            fields = await renew(self.node, session, items, progress)
        except (TaskMQError, TimeoutError, RuntimeError) as error:
            self.fail(ref, error)
        else:
            self.answer("renewed", ref, fields)

    def _drain(self, session: Session, ref: int) -> None:
        session.draining, session.drain_ref = True, ref
        self.unanswered -= 1  # its final reply is "drained", which may take as long as a handler runs
        self.say({"type": "draining", "ref": ref})
        if self.claiming is not None:
            self.claiming.cancel()
        self.node.claims.gone(session.session_id)
        self._spawn(self.hub.give_back_reservations(session))


def _item(reply: Reply) -> Reply:
    error = reply.get("error")
    if isinstance(error, ApiError):
        return {**{k: v for k, v in reply.items() if k != "error"}, "error": error.body()}
    return reply
