"""How a watcher learns of a task's end: the server tells whoever has read a record that it has changed.

That is CLIENT TRACKING (Redis 6, Valkey), made for caches: read the record's first letter, and its next change, by
whatever script, is pushed to the connection that has read it. So no script pays for those who watch, and nobody looks
again and again: looks between 10 and 250 ms apart noticed the end of a task of a second 130 ms late, this 1 ms.

A watch has a connection of its own, so there are at most CONNECTIONS of them in one store object. Those beyond, and all
where the server, a proxy or an ACL does not allow it, look by themselves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from taskmq.errors import ConfigError, TransportError
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.exchange import exchange
from taskmq.transport.redis.runner import Runner

CONNECTIONS = 32
FIRST_LOOK, LAST_LOOK = 0.01, 0.25
"""Seconds between two looks of those who are not told."""
LONGEST = 1.0
"""Seconds after which even those look who are told: the store may have been closed."""
DISTRUST = 30.0
"""Seconds for which nobody tries it where it did not work."""

Ended = Callable[[bytes], bool]
"""Whether this letter, or none, is that of a task that has ended."""


class Watching:
    """The watches of one store object."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._places = threading.Semaphore(CONNECTIONS)
        self._again_at = 0.0

    def watch(self, key: bytes, timeout: float, ended: Ended) -> bool:
        """Block until the task of this key has ended or is gone (True), or the time is over."""
        if self._pid != os.getpid():
            self._start_anew()
        now = time.monotonic()
        if ended(self._runner.command("GETRANGE", key, 0, 0)):
            return True
        if timeout > FIRST_LOOK and now >= self._again_at and self._places.acquire(blocking=False):
            try:
                return self._listen(key, now + timeout, ended)
            except (ConfigError, TransportError):  # in whatever trouble that one connection is, this is the plain way
                self._again_at = time.monotonic() + DISTRUST
            finally:
                self._places.release()
        return self._look(key, now + timeout, ended)

    def _listen(self, key: bytes, deadline: float, ended: Ended) -> bool:
        server = self._runner.server_of(key)
        with server.listening() as connection:
            _ask(server, connection, "CLIENT", "TRACKING", "ON")
            while not ended(_ask(server, connection, "GETRANGE", key, 0, 0)):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                server.heard(connection, min(left, LONGEST))
                if self._runner.closed:
                    raise TransportError("this store is closed")
        return True

    def _look(self, key: bytes, deadline: float, ended: Ended) -> bool:
        pause = FIRST_LOOK
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LAST_LOOK)
            if ended(self._runner.command("GETRANGE", key, 0, 0)):
                return True


def _ask(server: Server, connection: Any, *command: Any) -> Any:
    (reply,) = exchange(server.settings.shown, connection, [command])
    if isinstance(reply, Exception):
        raise server.error(reply)
    return reply
