"""News between processes: LISTEN on one connection, NOTIFY at most every few milliseconds. Essay: wake-ups.

A NOTIFY takes a lock that all commits of the server's notifying transactions share, and wakes every listener; sixteen
processes that notified with each publish lost a quarter of their rate, and more than half with sixteen listeners beside
them. So it is sent apart from the transaction, after its commit, and at most once in 25 ms by a process: the first one
at once, what follows within that time in one more at its end. A listener that hears of a queue only looks whether
something can be claimed.

Nothing depends on a notice: a waiter looks once a second anyway, and every 50 ms while its process cannot listen.
"""

from __future__ import annotations

import os
import select
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b

import psycopg

from taskmq.errors import TaskMQError
from taskmq.transport.sql.postgresql.exchange import Line
from taskmq.transport.sql.wakeup import Bells

QUIET, LONG_QUIET = 0.025, 0.25
"""Seconds between two notices of a process, and before one that says only that tasks have ended."""
ENDED = "!"
"""In the place of queues; no queue has this name."""
FIRST_RETRY, LAST_RETRY = 0.1, 2.0
LONGEST = 7000
"""Bytes of a payload; the server takes 8000."""


def channel(schema: str, namespace: str) -> str:
    """The channel on which a namespace's processes speak; a database may have several schemas of taskmq."""
    return f"taskmq_{blake2b(f'{schema}/{namespace}'.encode(), digest_size=8).hexdigest()}"


class Listener:
    """A thread with a connection that rings this process's bells when others have published."""

    def __init__(self, connect: Callable[[], Line], name: str, bells: Bells) -> None:
        self.token = uuid.uuid4().hex[:12]
        self.hears = False
        """Whether notices come through now."""
        self._connect = connect
        self._name = name
        self._bells = bells
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ear, self._mouth = -1, -1

    def start(self) -> None:
        """Begin to listen, if nobody has yet."""
        if self._thread is None:
            with self._mutex:
                if self._thread is None and not self._closed:
                    self._ear, self._mouth = os.pipe()
                    thread = threading.Thread(target=self._run, name="taskmq-listen", daemon=True)
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        pause = FIRST_RETRY
        while not self._closed:
            with suppress(psycopg.Error, TaskMQError, OSError), self._connect() as connection:
                connection.execute(f"LISTEN {self._name}")
                self.hears, pause = True, FIRST_RETRY
                self._bells.ring()  # what was said before is not heard any more
                self._hear(connection)
            self.hears = False
            if not self._closed:
                select.select([self._ear], [], [], pause)
                pause = min(LAST_RETRY, 2 * pause)

    def _hear(self, connection: Line) -> None:
        """Until it is closed or the connection ends."""
        line = connection.pgconn
        ears = select.poll()
        ears.register(line.socket, select.POLLIN)
        ears.register(self._ear, select.POLLIN)
        while not self._closed:
            ears.poll()
            line.consume_input()
            queues: set[str] | None = set()
            heard = False
            while notice := line.notifies():
                token, _, names = notice.extra.decode().partition(" ")
                if token == self.token:
                    continue
                heard = True
                if names == ENDED:
                    continue
                queues = None if queues is None or not names else queues | set(names.split(","))
            if heard:
                self._bells.ring(queues)

    def close(self) -> None:
        """End the thread and its connection."""
        with self._mutex:
            self._closed = True
        if self._thread is not None:
            os.write(self._mouth, b".")
            self._thread.join(5.0)
            os.close(self._ear)
            os.close(self._mouth)


class Herald:
    """Tells other processes which queues have news; ``send`` sends one notice on a channel."""

    def __init__(self, send: Callable[[str, str], None], name: str, listener: Listener | None) -> None:
        self._send = send
        self._name = name
        self._token = "-" if listener is None else listener.token
        self._mutex = threading.Lock()
        self._last = float("-inf")
        self._news: set[str] | None = set()
        self._timer: threading.Timer | None = None

    def tell(self, queues: Sequence[str] | None) -> None:
        """These queues have news, None for any. Now, or a moment later together with more."""
        with self._mutex:
            self._news = None if queues is None or self._news is None else self._news | set(queues)
            wait = self._last + QUIET - time.monotonic()
            if wait > 0:
                if self._timer is None:
                    self._timer = threading.Timer(wait, self._flush)
                    self._timer.daemon = True
                    self._timer.start()
                return
            payload = self._take()
        self._speak(payload)

    def tell_ended(self) -> None:
        """Tasks have ended: news for who waits for one, if nothing was said lately; he looks by himself before long."""
        with self._mutex:
            if self._last + LONG_QUIET > time.monotonic():
                return
            self._last = time.monotonic()
        self._speak(f"{self._token} {ENDED}")

    def notice(self, queues: Sequence[str]) -> tuple[str, str]:
        """Channel and payload of a notice that somebody else sends, and that this process is to hear, too."""
        names = ",".join(queues)
        return self._name, f"- {names if len(names) < LONGEST else ''}"

    def _take(self) -> str:
        names = "" if self._news is None else ",".join(sorted(self._news))
        self._news, self._last = set(), time.monotonic()
        return f"{self._token} {names if len(names) < LONGEST else ''}"

    def _flush(self) -> None:
        with self._mutex:
            self._timer = None
            payload = None if self._news == set() else self._take()  # somebody may have said it meanwhile
        if payload is not None:
            self._speak(payload)

    def _speak(self, payload: str) -> None:
        with suppress(psycopg.Error, TaskMQError):  # whoever waits looks by itself before long
            self._send(self._name, payload)

    def close(self) -> None:
        """Say what is still to be said."""
        with self._mutex:
            timer, self._timer = self._timer, None
            payload = None if self._news == set() else self._take()
        if timer is not None:
            timer.cancel()
        if payload is not None:
            self._speak(payload)
