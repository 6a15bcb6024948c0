"""uvicorn's two protocols with the limits of the contract that a framework cannot keep.

A request's head is bounded in lines, bytes and time before there is anything to route. A socket's pings are answered
below the application, so a flood of them is seen here only; and a peer that never reads must not keep its buffers for
ever after its connection was closed.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.transports import Transport
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

MAX_HEADERS = 100
MAX_HEADER = 8192
"""Bytes of a header line."""
HEADER_SECONDS = 10.0
"""For the head of a request."""
STALL_SECONDS = 30.0
"""For which a peer may read nothing of an answer."""
PINGS_A_SECOND = 10

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class HttpProtocol(HttpToolsProtocol):
    """HTTP with a bounded head: the parser's own answers, 400 and 431, have no envelope."""

    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _head = 0
    """Bytes since the last complete head; -1 while a body is read."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A peer connected: its first head is awaited."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._head_is_there()
        self._flows()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of it."""
        if self._head >= 0:
            self._head += len(data)
        super().data_received(data)
        if self._head > (MAX_HEADERS + 1) * MAX_HEADER and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """The first byte of a request, also of one that follows another."""
        if self._deadline is None:
            self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line of a head."""
        if len(self.headers) >= MAX_HEADERS or len(name) + len(value) > MAX_HEADER:
            self._refuse()
            raise ValueError("too many or too long header lines")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is there; the body has its own patience."""
        self._head = -1
        self._head_is_there()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is there; another head may follow."""
        self._head = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is written to."""
        super().pause_writing()
        self._flows()
        self._stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        self._flows()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """The parser's own answer, if there was none yet."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _flows(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _head_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()


class SocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket that ends with a flood of pings, and lets a peer go that does not read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pings: deque[float] = deque(maxlen=PINGS_A_SECOND + 1)

    def handle_ping(self) -> None:
        """Answer a ping, unless there are too many."""
        now = time.monotonic()
        self._pings.append(now)
        if len(self._pings) > PINGS_A_SECOND and now - self._pings[0] < 1.0:
            self.conn.fail(1008, "PING_FLOOD")
            self.handle_parser_exception()
        else:
            super().handle_ping()

    def shutdown(self) -> None:
        """The node stops, whether or not the peer is about to leave, too."""
        try:
            super().shutdown()
        except InvalidState:  # the peer's close is being answered
            self.transport.close()

    async def run_asgi(self) -> None:
        """Serve the connection; what its peer has not read by the end is dropped."""
        await super().run_asgi()
        if not self.writable.is_set():
            self.transport.abort()
