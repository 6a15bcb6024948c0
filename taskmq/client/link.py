"""A worker's connection, which comes back: connecting, sending, reading, and after how long to try again."""

from __future__ import annotations

import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from taskmq.client.errors import PermissionDenied, Unauthenticated, of_error
from taskmq.errors import ConfigError, TaskMQError
from taskmq.wire import strict
from taskmq.wire.codes import MAX_MESSAGE, SUBPROTOCOL

if TYPE_CHECKING:
    from taskmq.client.aio import AsyncClient
    from taskmq.client.client import Client

log = logging.getLogger("taskmq.client")

FINAL = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNSUPPORTED_PROTOCOL")
"""Words of a close with 1008 after which coming back is no use."""
ENDING = (1000, 1002, 1003, 1007, 4001)
"""Codes of a close after which a worker does not come back: it has drained, is at fault, or goes on elsewhere."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
STEADY = 60.0
"""Seconds of connection after which pauses start short again."""
GRANTING = ("start", "renew")
"""Requests whose answers grant a lease, which counts from when they were sent."""

Message = dict[str, Any]


class Final(Exception):
    """Coming back is no use."""

    def __init__(self, cause: TaskMQError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Link:
    """One connection at a time. ``send`` is for every thread, the rest for the one that reads.

    ``lock``      guards the connection, and what its user keeps of it: with two, each thread could hold the other's
    ``hello``     makes the first message of a connection
    ``welcomed``  is called with the answer to it, and when it was sent, before anything else can be
    ``heard``     is called with every other message, and for the answer to a ``start`` or ``renew`` when that was sent
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        lock: AbstractContextManager[Any],
        hello: Callable[[], Message],
        welcomed: Callable[[Message, float], None],
        heard: Callable[[Message, float], None],
    ) -> None:
        self._client = client
        self._hello = hello
        self._welcomed = welcomed
        self._heard = heard
        self._lock = lock
        self._ref = 0
        self._sent: dict[int, float] = {}
        self.socket: ClientConnection | None = None

    def send(self, message: Message) -> int | None:
        """Send a request; its ref, or None without a connection: then resuming will see to it."""
        with self._lock:
            if self.socket is None:
                return None
            self._ref += 1
            if message["type"] in GRANTING:
                self._sent[self._ref] = time.monotonic()
            try:
                self.socket.send(strict.dumps({**message, "ref": self._ref}).decode())
            except (ConnectionClosed, OSError):
                return None
            return self._ref

    def close(self) -> None:
        """End the connection there is."""
        with self._lock:
            link = self.socket
        if link is not None:
            with contextlib.suppress(Exception):
                link.close()

    def run(self, over: Callable[[], bool], wait: Callable[[float], object], lost: Callable[[], None]) -> None:
        """Connect, read, come back, until it is ``over``. ``lost`` is called after each end; raises Final."""
        pause, first = FIRST_PAUSE, True
        while not over():
            if not first:
                wait(random.uniform(0, pause))
                pause = min(LONGEST_PAUSE, pause * 2)
            first, began = False, time.monotonic()
            try:
                with self._connect() as link:
                    self._converse(link, over)
            except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError, EOFError) as error:
                log.info("the connection to %s is lost: %s", self._client.url, error)
            finally:
                with self._lock:
                    self.socket = None
                    self._sent.clear()
                lost()
            if time.monotonic() - began > STEADY:
                pause = FIRST_PAUSE

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
                raise Final(_refused(error)) from None
            raise

    def _converse(self, link: ClientConnection, over: Callable[[], bool]) -> None:
        sent = time.monotonic()
        link.send(strict.dumps(self._hello()).decode())
        welcome = _welcome(link)
        with self._lock:
            self.socket, self._ref = link, 0
            self._welcomed(welcome, sent)
        try:
            for data in link:
                message = strict.loads(data.encode() if isinstance(data, str) else data)
                self._heard(message, self._sent.pop(message.get("ref", 0), time.monotonic()))
                if over():
                    return
        finally:
            closed = link.protocol.close_rcvd
            if closed is not None and closed.code == 1008 and closed.reason in FINAL:
                raise Final(_of_close(closed.reason))
            if closed is not None and closed.code in ENDING and not over():
                raise Final(TaskMQError(f"the server has ended this worker: {closed.code} {closed.reason}"))


def _welcome(link: ClientConnection) -> Message:
    message: Message = strict.loads(str(link.recv(timeout=10)).encode())
    if message["type"] != "welcome":
        error = of_error(message)
        if message.get("code") in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT"):
            raise Final(error)
        raise ConnectionResetError(str(error))
    return message


def _refused(error: InvalidStatus) -> TaskMQError:
    try:
        value = strict.loads(bytes(error.response.body or b""))
    except ValueError:
        value = {}
    return of_error(value.get("error") if isinstance(value, dict) else None, error.response.status_code)


def _of_close(word: str) -> TaskMQError:
    kind = {"UNAUTHENTICATED": Unauthenticated, "PERMISSION_DENIED": PermissionDenied}.get(word)
    return ConfigError(f"the server refuses this worker: {word}") if kind is None else kind(word)
