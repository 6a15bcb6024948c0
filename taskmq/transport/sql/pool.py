"""A few connections to a server, handed out to one caller at a time, in the order in which they came.

A semaphore would not do: whoever gives back a connection and asks again at once takes it from those who wait, and with
claimers in a loop one thread waited for half a minute.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from taskmq.errors import TransportUnavailable


class Closable(Protocol):
    """A connection of a driver."""

    def close(self) -> Any:
        """End it."""
        ...


C = TypeVar("C", bound=Closable)

_inherited: list[object] = []
"""Connections of a process that forked: not ours to end, and collecting them would."""


class Pool(Generic[C]):
    """At most ``size`` connections, made by ``connect`` when they are needed.

    ``usable`` says whether one may be handed out again. ``patience``: seconds to wait for one's turn.
    """

    def __init__(self, connect: Callable[[], C], usable: Callable[[C], bool], size: int, patience: float) -> None:
        self._connect = connect
        self._usable = usable
        self._size = size
        self._patience = patience
        self._idle: deque[C] = deque()
        self._closed = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._mutex = threading.Lock()
        self._free = self._size
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A connection for one caller; raises TransportUnavailable when none becomes free in time."""
        self._take_turn()
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                yield connection
            finally:
                if self._closed or not self._usable(connection):
                    with suppress(Exception):  # it may be closed already, which PyMySQL takes for an error
                        connection.close()
                else:
                    self._idle.append(connection)
                    if self._closed:  # just now
                        self.clear()
        finally:
            self._end_turn()

    def _take_turn(self) -> None:
        turn = threading.Lock()
        with self._mutex:
            if self._free:
                self._free -= 1
                return
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=self._patience):
            return
        with self._mutex:
            if turn not in self._waiting:  # it came just now
                return
            self._waiting.remove(turn)
        raise TransportUnavailable(
            f"all {self._size} connections of this process have been busy for {self._patience:g} s; "
            "nothing was stored (more of them: ?pool= in the URL)"
        )

    def _end_turn(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()  # handed over: nobody can come in between
            else:
                self._free += 1

    def clear(self) -> None:
        """End the idle connections: the server has gone, or been away."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def close(self) -> None:
        """End all connections, those in use when they come back."""
        self._closed = True
        self.clear()

    def leave_to_parent(self) -> None:
        """After a fork, in the child: the connections are not this process's."""
        _inherited.extend(self._idle)
        self._idle.clear()
        self._start_anew()
