"""A worker of a server. Essay: what it holds, and how it comes back.

One thread reads. It connects, claims while a slot is free, and takes what comes: a ``dispatch`` becomes a ``start``,
and only ``started`` puts a task on a slot's desk. Another thread sends heartbeats. Neither ever waits for a handler.

A result leaves as ``finish`` and stays here until the server has confirmed it. When the connection breaks, handlers go
on; the reader comes back with the session and all that is held – offered, running, or finished and not confirmed – and
the server says which of it still stands. What was only offered is started again; what the server takes for started and
nobody here has begun is begun now, for that is the authority; what is finished is said again; what is lost is told to
its handler, and its result is dropped with a word in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import random
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from taskmq.client.aio import AsyncClient
from taskmq.client.client import Client
from taskmq.client.errors import PermissionDenied, Unauthenticated, of_error
from taskmq.client.execution import Dispatched, Execution, Token, finish
from taskmq.errors import ConfigError, TaskMQError
from taskmq.wire import strict
from taskmq.wire.codes import MAX_MESSAGE, SUBPROTOCOL

log = logging.getLogger("taskmq.client")

MAX_CLAIM = 100
FINAL = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNSUPPORTED_PROTOCOL")
"""Words of a close with 1008 after which coming back is no use."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
STEADY = 60.0
"""Seconds of connection after which pauses start short again."""

Handler = Callable[[Execution], Any]
H = TypeVar("H", bound=Callable[..., Any])


class _Held:
    """A delivery: offered, running, or finished and not confirmed."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.running = False
        self.result: dict[str, Any] | None = None


class Worker:
    """Works off tasks of these queues, ``capacity`` at once, on threads.

    ``handlers``: ``name`` or ``(name, version)`` → function of an Execution; or use ``@worker.handler``.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        queues: Sequence[str],
        capacity: int = 1,
        *,
        worker_id: str | None = None,
        handlers: Mapping[Any, Handler] | None = None,
    ) -> None:
        if isinstance(queues, str) or not queues:
            raise ConfigError("queues must be a list of names or ids")
        self.worker_id = worker_id or f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._client = client
        self._queues = list(queues)
        self._capacity = capacity
        self._handlers: dict[tuple[str, str], Handler] = {}
        for name, function in (handlers or {}).items():
            self._handlers[name if isinstance(name, tuple) else (name, "v1")] = function
        self._lock = threading.RLock()
        self._held: dict[Token, _Held] = {}
        self._desk: queue.SimpleQueue[_Held | None] = queue.SimpleQueue()
        self._socket: ClientConnection | None = None
        self._session: str | None = None
        self._ref = 0
        self._claim: int | None = None
        self._heartbeat = 10.0
        self._lease = 30.0
        self._stopping = threading.Event()
        self._draining = False
        self._drained = threading.Event()
        self._told = False
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def handler(self, name: str, *, version: str = "v1") -> Callable[[H], H]:
        """Register a function for tasks of this handler."""

        def register(function: H) -> H:
            self._handlers[name, version] = function
            return function

        return register

    # ── life ──

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.drain(25.0)
        self.stop()

    def start(self) -> None:
        """Connect and work, in the background."""
        if not self._handlers:
            raise ConfigError("the worker has no handlers: register some with @worker.handler")
        targets = [self._link, self._beat] + [self._slot] * self._capacity
        self._threads = [threading.Thread(target=t, name=f"taskmq-{t.__name__[1:]}", daemon=True) for t in targets]
        for thread in self._threads:
            thread.start()

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain. Raises what ended it otherwise."""
        asked = threading.Event()
        old = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            while not asked.wait(0.2) and not self._stopping.is_set():
                pass
            self.drain(25.0)
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            self.stop()
        if self._failure is not None:
            raise self._failure

    def drain(self, timeout: float) -> bool:
        """Take nothing more, let what runs end; whether the server confirmed that nothing is held."""
        with self._lock:
            self._draining = True
            if not self._told and self._session is not None and self._send({"type": "drain"}) is not None:
                self._told = True
        return self._drained.wait(timeout)

    def stop(self) -> None:
        """End now. What runs is told to stop; what is not confirmed comes back by its lease."""
        self._stopping.set()
        with self._lock:
            for held in self._held.values():
                held.execution.cancel()
            link = self._socket
        for _ in range(self._capacity):
            self._desk.put(None)
        if link is not None:
            with contextlib.suppress(Exception):
                link.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)

    # ── sending ──

    def _send(self, message: dict[str, Any]) -> int | None:
        """Send a request; its ref, or None without a connection: then resuming will see to it."""
        with self._lock:
            if self._socket is None:
                return None
            self._ref += 1
            data = strict.dumps({**message, "ref": self._ref}).decode()
            try:
                self._socket.send(data)
            except (ConnectionClosed, OSError):
                return None
            return self._ref

    def _claim_more(self) -> None:
        """Claim as many tasks as slots are free, unless a claim is on its way."""
        with self._lock:
            free = self._capacity - len(self._held)
            if free > 0 and self._claim is None and not self._draining and not self._stopping.is_set():
                self._claim = self._send({"type": "claim", "queues": self._queues, "n": min(free, MAX_CLAIM)})

    # ── reading ──

    def _link(self) -> None:
        """Connect, read, come back."""
        pause = FIRST_PAUSE
        first = True
        while not self._stopping.is_set() and not self._drained.is_set():
            if not first:
                self._stopping.wait(random.uniform(0, pause))
                pause = min(LONGEST_PAUSE, pause * 2)
            first = False
            began = time.monotonic()
            try:
                with self._connect() as link:
                    self._converse(link)
            except _Final as error:
                self._fail(error.cause)
                return
            except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError, EOFError) as error:
                log.info("worker %s: the connection is lost: %s", self.worker_id, error)
            except Exception as error:
                log.exception("worker %s failed", self.worker_id)
                self._fail(error)
                return
            finally:
                with self._lock:
                    self._socket, self._claim = None, None
                    self._told = False
            if time.monotonic() - began > STEADY:
                pause = FIRST_PAUSE

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._stopping.set()
        for _ in range(self._capacity):
            self._desk.put(None)

    def _connect(self) -> ClientConnection:
        url = "ws" + self._client.url.removeprefix("http") + "/v1/workers/connect"
        secure = self._client.verify if isinstance(self._client.verify, ssl.SSLContext) else None
        try:
            return connect(
                url,
                additional_headers={"Authorization": f"Bearer {self._client.credentials.token}"},
                subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
                max_size=MAX_MESSAGE,
                compression=None,
                open_timeout=10,
                close_timeout=1,
                ssl=secure,
            )
        except InvalidStatus as error:
            if error.response.status_code in (401, 403):
                raise _Final(_refused(error)) from None
            raise

    def _converse(self, link: ClientConnection) -> None:
        link.send(strict.dumps(self._hello()).decode())
        welcome = self._welcome(link)
        with self._lock:
            self._session, self._socket, self._ref = welcome["session_id"], link, 0
            self._heartbeat = welcome["heartbeat_ms"] / 1000
            self._resume(welcome)
            if self._draining and self._send({"type": "drain"}) is not None:
                self._told = True
        self._claim_more()
        try:
            for data in link:
                self._take(strict.loads(data.encode() if isinstance(data, str) else data))
                if self._drained.is_set():
                    return
        finally:
            closed = link.protocol.close_rcvd
            if closed is not None and closed.code == 1008 and closed.reason in FINAL:
                raise _Final(_of_close(closed.reason))

    def _hello(self) -> dict[str, Any]:
        hello: dict[str, Any] = {
            "type": "hello",
            "protocol": 1,
            "worker_id": self.worker_id,
            "capabilities": [{"handler": name, "handler_version": version} for name, version in self._handlers],
            "capacity": self._capacity,
            "resource_keys": True,
            "sdk": "taskmq-python",
        }
        with self._lock:
            if self._session is not None:
                deliveries = [{"task_id": task_id, "epoch": epoch} for task_id, epoch in self._held]
                hello["resume"] = {"session_id": self._session, "deliveries": deliveries}
        return hello

    def _welcome(self, link: ClientConnection) -> dict[str, Any]:
        message: dict[str, Any] = strict.loads(str(link.recv(timeout=10)).encode())
        if message["type"] != "welcome":
            error = of_error(message)
            if message.get("code") in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT"):
                raise _Final(error)
            raise ConnectionResetError(str(error))
        return message

    def _resume(self, welcome: dict[str, Any]) -> None:
        """What of all that is held still stands."""
        for lost in welcome["lost"]:
            self._lose((lost["task_id"], lost["epoch"]))
        for item in welcome["resumed"]:
            held = self._held.get((item["task_id"], item["epoch"]))
            if held is None:
                continue
            if held.result is not None:
                self._send(held.result)
            elif item["phase"] == "reserved":
                self._send({"type": "start", "task_id": item["task_id"], "epoch": item["epoch"]})
            else:
                self._begin(held, item["lease_ms"])

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        with self._lock:
            if message.get("ref") is not None and message.get("ref") == self._claim and not message.get("more"):
                self._claim = None
            if kind == "dispatch":
                for fields in message["tasks"]:
                    self._offered(msgspec.convert(fields, Dispatched))
            elif kind == "started":
                held = self._held.get((message["task_id"], message["epoch"]))
                if held is not None:
                    self._begin(held, message["lease_ms"])
            elif kind == "finished":
                self._confirmed((message["task_id"], message["epoch"]))
                for released in message.get("released", ()):
                    self._lose((released["task_id"], released["epoch"]))
            elif kind == "renewed":
                self._renewed(message)
            elif kind == "cancel":
                held = self._held.get((message["task_id"], message["epoch"]))
                if held is not None:
                    held.execution.cancel()
            elif kind == "drain":
                self._draining = True
            elif kind == "drained":
                self._drained.set()
            elif kind == "error":
                self._refused(message)
        pause = message.get("retry_after_ms", 0) if kind == "empty" else 0
        if pause:
            self._stopping.wait(pause / 1000)
        self._claim_more()

    def _offered(self, task: Dispatched) -> None:
        execution = Execution(task, self._send)
        self._held[task.task_id, task.epoch] = _Held(execution)
        if task.run is None or task.run.pos == 0:
            self._send({"type": "start", "task_id": task.task_id, "epoch": task.epoch})

    def _begin(self, held: _Held, lease_ms: int) -> None:
        """Authority to run; a repeated one changes the lease only."""
        self._lease = lease_ms / 1000
        held.execution.until = time.monotonic() + self._lease
        if not held.running:
            held.running = True
            self._desk.put(held)

    def _confirmed(self, token: Token) -> None:
        held = self._held.pop(token, None)
        run = held.execution.task.run if held is not None else None
        if run is not None:
            self._start_next(run.id, run.pos + 1)

    def _start_next(self, run_id: str, pos: int) -> None:
        for held in self._held.values():
            task = held.execution.task
            if task.run is not None and (task.run.id, task.run.pos) == (run_id, pos) and not held.running:
                self._send({"type": "start", "task_id": task.task_id, "epoch": task.epoch})

    def _lose(self, token: Token) -> None:
        held = self._held.pop(token, None)
        if held is None:
            return
        held.execution.cancel(lost=True)
        if held.running:
            log.warning("worker %s: the lease of task %s is lost; its result is dropped", self.worker_id, token[0])

    def _renewed(self, message: dict[str, Any]) -> None:
        until = time.monotonic() + message["lease_ms"] / 1000
        for held in self._held.values():
            if held.running:
                held.execution.until = max(held.execution.until, until)
        for item in message["cancel"]:
            held_ = self._held.get((item["task_id"], item["epoch"]))
            if held_ is not None:
                held_.execution.cancel()
        for item in message["lost"]:
            self._lose((item["task_id"], item["epoch"]))

    def _refused(self, message: dict[str, Any]) -> None:
        code = message["code"]
        if "task_id" not in message:
            log.warning("worker %s: %s %s", self.worker_id, code, message["message"])
            if not message.get("retryable"):
                self._stopping.wait(1.0)
            return
        token = (message["task_id"], message["epoch"])
        held = self._held.get(token)
        if code in ("UNAVAILABLE", "TIMEOUT") and held is not None:
            self._again(token, held)
        elif code == "PAYLOAD_TOO_LARGE" and held is not None and held.result is not None:
            failure = {"type": "PayloadTooLarge", "message": message["message"], "traceback": ""}
            held.result = {**_token(token), "type": "finish", "outcome": "dead", "error": failure}
            self._send(held.result)
        else:
            self._lose(token)

    def _again(self, token: Token, held: _Held) -> None:
        """The outcome is unknown: the same message again, a little later."""
        repeat = held.result or {**_token(token), "type": "start"}
        timer = threading.Timer(0.5, self._send, [repeat])
        timer.daemon = True
        timer.start()

    # ── the other threads ──

    def _beat(self) -> None:
        """Heartbeats, also while every handler is busy."""
        while not self._stopping.wait(min(self._heartbeat, self._lease / 3) * random.uniform(0.8, 1.0)):
            with self._lock:
                items = [_token(token) for token in self._held]
                self._send({"type": "renew", "items": items})

    def _slot(self) -> None:
        """Run one execution after another."""
        while True:
            held = self._desk.get()
            if held is None or self._stopping.is_set():
                return
            task = held.execution.task
            function = self._handlers.get((task.handler, task.handler_version))
            message = finish(task, lambda f=function, e=held.execution: self._call(f, e))  # type: ignore[misc]
            with self._lock:
                token = (task.task_id, task.epoch)
                if self._held.get(token) is held:
                    held.result = message
                    self._send(message)

    def _call(self, function: Handler | None, execution: Execution) -> Any:
        if function is None:
            raise LookupError(f"this worker has no handler {execution.task.handler}")
        return function(execution)


class _LoopWorker(Worker):
    """A Worker whose handlers may be coroutines, run on this loop."""

    loop: asyncio.AbstractEventLoop

    def _call(self, function: Handler | None, execution: Execution) -> Any:
        result = super()._call(function, execution)
        if isinstance(result, Awaitable):
            return asyncio.run_coroutine_threadsafe(_awaited(result), self.loop).result()
        return result


class AsyncWorker:
    """``Worker`` for asyncio: the same arguments and names, awaitable. Handlers may be coroutines."""

    def __init__(
        self,
        client: Client | AsyncClient,
        queues: Sequence[str],
        capacity: int = 1,
        *,
        worker_id: str | None = None,
        handlers: Mapping[Any, Handler] | None = None,
    ) -> None:
        self._core = _LoopWorker(client, queues, capacity, worker_id=worker_id, handlers=handlers)
        self.worker_id = self._core.worker_id

    async def __aenter__(self) -> AsyncWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain(25.0)
        await self.stop()

    def handler(self, name: str, *, version: str = "v1") -> Callable[[H], H]:
        """Register a function or coroutine function for tasks of this handler."""
        return self._core.handler(name, version=version)

    async def start(self) -> None:
        """Connect and work, in the background."""
        self._core.loop = asyncio.get_running_loop()
        self._core.start()

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        try:
            await self.start()
            await asked.wait()
            await self.drain(25.0)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            await self.stop()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the name that both workers have
        """Take nothing more, let what runs end; whether the server confirmed that nothing is held."""
        return await asyncio.to_thread(self._core.drain, timeout)

    async def stop(self) -> None:
        """End now."""
        await asyncio.to_thread(self._core.stop)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


class _Final(Exception):
    """Coming back is no use."""

    def __init__(self, cause: TaskMQError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _token(token: Token) -> dict[str, Any]:
    return {"task_id": token[0], "epoch": token[1]}


def _refused(error: InvalidStatus) -> TaskMQError:
    try:
        value = strict.loads(bytes(error.response.body or b""))
    except ValueError:
        value = {}
    return of_error(value.get("error") if isinstance(value, dict) else None, error.response.status_code)


def _of_close(word: str) -> TaskMQError:
    kind = {"UNAUTHENTICATED": Unauthenticated, "PERMISSION_DENIED": PermissionDenied}.get(word)
    return ConfigError(f"the server refuses this worker: {word}") if kind is None else kind(word)


__all__ = ["AsyncWorker", "Worker"]
