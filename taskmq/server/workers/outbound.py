"""What leaves a connection: one line of messages, written one after the other."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from starlette.types import Send

from taskmq.server.signals import until

MAX_MESSAGES = 256
MAX_BYTES = 4 * 1_048_576


class Outbound:
    """Messages on their way to a worker. Beyond 256 of them or 4 MiB, ``room`` is not set."""

    def __init__(self, send: Send) -> None:
        self.room = asyncio.Event()
        self.room.set()
        self._send = send
        self._line: deque[bytes] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._sending = False
        self._since = time.monotonic()

    def put(self, data: bytes) -> None:
        """Send an encoded message after those before it."""
        self._line.append(data)
        self._bytes += len(data)
        if len(self._line) > MAX_MESSAGES or self._bytes > MAX_BYTES:
            self.room.clear()
        self._filled.set()

    def stalled(self, now: float, most: float) -> bool:
        """Whether a message has been waiting to be written for so many seconds."""
        return self._sending and now - self._since > most

    async def run(self) -> None:
        """Write until cancelled; raises what the socket raises."""
        while True:
            while not self._line:
                self._filled.clear()
                await self._filled.wait()
            data = self._line.popleft()
            self._bytes -= len(data)
            self._sending, self._since = True, time.monotonic()
            await self._send({"type": "websocket.send", "text": data.decode()})
            self._sending = False
            if not self.room.is_set() and len(self._line) <= MAX_MESSAGES // 2 and self._bytes <= MAX_BYTES // 2:
                self.room.set()

    async def flushed(self, writer: asyncio.Task[None]) -> None:
        """What was said is sent, if that goes within a second."""
        await until(lambda: writer.done() or not (self._line or self._sending), 1.0, 0.005)
