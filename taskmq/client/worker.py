"""A worker of a server. Essay: what it holds, and how it comes back.

One thread reads. It connects, claims while a slot is free, and takes what comes: a ``dispatch`` becomes a ``start``,
and only ``started`` puts a task on a slot's desk. Another thread sends heartbeats. Neither ever waits for a handler.

A result leaves as ``finish`` and stays here until the server has confirmed it. When the connection breaks, handlers go
on; the reader comes back with the session and all that is held – offered, running, or finished and not confirmed – and
the server says which of it still stands. What was only offered is started again; what the server takes for started and
nobody here has begun is begun now, for that is the authority; what is finished is said again; what is lost is told to
its handler, and its result is dropped with a word in the log.

``link.py`` is the connection, ``hands.py`` is what is held; here is who does what, and when it ends.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from taskmq.client.aio import AsyncClient
from taskmq.client.client import Client
from taskmq.client.execution import Execution, finish
from taskmq.client.hands import Hands
from taskmq.client.link import Final, Link
from taskmq.errors import ConfigError

log = logging.getLogger("taskmq.client")

MAX_CLAIM = 100
REFUSED_PAUSE = 1.0
"""Seconds before the next claim after one that was refused for good."""
FASTEST_BEAT = 0.25
"""Seconds between two heartbeats however short a lease is: one that a deadline cuts is not made longer by renewing."""

Handler = Callable[[Execution], Any]
H = TypeVar("H", bound=Callable[..., Any])


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
        self._queues = list(queues)
        self._capacity = capacity
        self._handlers: dict[tuple[str, str], Handler] = {}
        for name, function in (handlers or {}).items():
            self._handlers[name if isinstance(name, tuple) else (name, "v1")] = function
        self._lock = threading.RLock()
        self._link = Link(client, self._lock, self._hello, self._welcomed, self._heard)
        self._hands = Hands(self._link.send)
        self._session: str | None = None
        self._claim: int | None = None
        self._heartbeat = 10.0
        self._stopping = threading.Event()
        self._draining = False
        """For good: somebody has asked for it."""
        self._leaving = False
        """This connection's server shuts down; the next one may be another's."""
        self._drained = threading.Event()
        self._finished = threading.Event()
        """It has drained, or never will: it was stopped, or has failed."""
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
        targets = [self._read, self._beat] + [self._slot] * self._capacity
        self._threads = [threading.Thread(target=t, name=f"taskmq-{t.__name__[1:]}", daemon=True) for t in targets]
        for thread in self._threads:
            thread.start()

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain. Raises what ended it otherwise."""
        asked = threading.Event()
        old = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            while not asked.wait(0.2) and not self.ended:
                pass
            if not self.ended:
                self.drain(25.0)
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            self.stop()
        self.raise_failure()

    @property
    def ended(self) -> bool:
        """Whether it works no more: it was stopped, has drained, or the server will not have it."""
        return self._stopping.is_set()

    def raise_failure(self) -> None:
        """Raise what ended it, unless that was asked for."""
        if self._failure is not None:
            raise self._failure

    def drain(self, timeout: float) -> bool:
        """Take nothing more, let what runs end; whether the server confirmed that nothing is held."""
        with self._lock:
            self._ask_to_drain()
        self._finished.wait(timeout)
        return self._drained.is_set()

    def _ask_to_drain(self) -> None:
        self._draining = True
        if not self._told and self._session is not None and self._link.send({"type": "drain"}) is not None:
            self._told = True

    def stop(self) -> None:
        """End now. What runs is told to stop; what is not confirmed comes back by its lease."""
        self._end()
        with self._lock:
            self._hands.cancel()
        self._link.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)

    def _end(self) -> None:
        self._stopping.set()
        self._finished.set()
        self._hands.shorter.set()
        for _ in range(self._capacity):
            self._hands.desk.put(None)

    # ── the thread that reads ──

    def _read(self) -> None:
        """Connect, read, come back."""
        try:
            self._link.run(lambda: self._stopping.is_set() or self._drained.is_set(), self._stopping.wait, self._cut)
        except Final as error:
            self._failure = error.cause
        except Exception as error:
            log.exception("worker %s failed", self.worker_id)
            self._failure = error
        self._end()

    def _cut(self) -> None:
        """The connection is gone."""
        with self._lock:
            self._claim, self._told, self._leaving = None, False, False

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
                hello["resume"] = {"session_id": self._session, "deliveries": self._hands.named()}
        return hello

    def _welcomed(self, welcome: dict[str, Any], sent: float) -> None:
        with self._lock:
            self._session = welcome["session_id"]
            self._heartbeat = welcome["heartbeat_ms"] / 1000
            self._hands.resume(welcome, sent)
            if self._draining:
                self._ask_to_drain()
            self._claim_more()

    def _heard(self, message: dict[str, Any], sent: float) -> None:
        kind, pause = message["type"], 0.0
        with self._lock:
            if message.get("ref") is not None and message["ref"] == self._claim and not message.get("more"):
                self._claim = None
            self._hands.hear(message, sent)
            if kind == "drain" and message["reason"] == "operator":
                self._ask_to_drain()
            elif kind == "drain":
                self._leaving = True
            elif kind == "drained":
                self._drained.set()
                self._finished.set()
            elif kind == "empty":
                pause = message.get("retry_after_ms", 0) / 1000
                self._leaving = self._leaving or message["reason"] == "draining"
            elif kind == "error" and "task_id" not in message:
                log.warning("worker %s: %s %s", self.worker_id, message["code"], message["message"])
                pause = message.get("details", {}).get("retry_after_ms", REFUSED_PAUSE * 1000) / 1000
        if not pause:
            self._claim_more()
        elif self._claim is None:
            later = threading.Timer(pause, self._claim_more)
            later.daemon = True
            later.start()

    def _claim_more(self) -> None:
        """Claim as many tasks as slots are free, unless a claim is on its way."""
        with self._lock:
            free = self._capacity - len(self._hands)
            over = self._draining or self._leaving or self._stopping.is_set()
            if free > 0 and self._claim is None and not over:
                claim = {"type": "claim", "queues": self._queues, "n": min(free, MAX_CLAIM)}
                self._claim = self._link.send(claim)

    # ── the other threads ──

    def _beat(self) -> None:
        """Heartbeats, also while every handler is busy; sooner than was meant when a shorter lease is granted."""
        beaten = time.monotonic()
        while True:
            with self._lock:
                pause = max(FASTEST_BEAT, min(self._heartbeat, self._hands.shortest() / 3))
            if self._stopping.is_set():
                return
            if self._hands.shorter.wait(max(0.0, beaten + pause * random.uniform(0.8, 1.0) - time.monotonic())):
                continue
            with self._lock:
                beaten = time.monotonic()
                self._link.send({"type": "renew", "items": self._hands.named()})

    def _slot(self) -> None:
        """Run one execution after another."""
        while True:
            held = self._hands.desk.get()
            if held is None or self._stopping.is_set():
                return
            task = held.execution.task
            function = self._handlers.get((task.handler, task.handler_version))
            message = {}
            if self._hands.stands(held):
                message = finish(task, lambda f=function, e=held.execution: self._call(f, e))  # type: ignore[misc]
            with self._lock:
                self._hands.ended(held, message)
                self._claim_more()

    def _call(self, function: Handler | None, execution: Execution) -> Any:
        if function is None:
            raise LookupError(f"this worker has no handler {execution.task.handler}")
        return function(execution)


__all__ = ["Worker"]
