"""The way to the server: connections, and how scripts are called.

The driver is redis-py, synchronous and low-level: connections of our own, which it makes and ends; what lies between
is direct.py. RESP2, because a script's replies change their shape under RESP3.

A stack of connections: whoever needs one takes the one that was used last, or makes one, so there are as many as
there are callers at once. One that has rested for a second is looked at before it is used, because a server that was
restarted meanwhile has left a dead socket. The stack needs no lock: ``pop`` and ``append`` are one step each, and
whoever has put one back looks whether the store has been closed meanwhile. In a forked child the parent's connections
are forgotten and never touched.

What a lost connection means depends on when it is lost. Before the command is sent nothing has happened:
TransportUnavailable. After that nobody knows: OutcomeUnknown – unless the verb may be sent again, then it is, once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from redis.backoff import NoBackoff
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from taskmq.errors import ConfigError, OutcomeUnknown, StoreFull, TransportError, TransportUnavailable
from taskmq.transport.redis.direct import direct
from taskmq.transport.redis.errors import error_for
from taskmq.transport.redis.exchange import Command, exchange
from taskmq.transport.redis.permission import rehearsal
from taskmq.transport.redis.scripts import Call, library
from taskmq.transport.redis.settings import Settings

RESTED = 1.0
"""Seconds after which a connection is looked at before it is used."""
OLDEST = (6, 2)
OLDEST_CLUSTER = (7, 0)
"""Since then a server refuses a script that touches keys of another slot; before it wrote them on the wrong node."""
LESSONS = 5
"""How often a server is told the scripts in one call: somebody may flush them again and again."""

Way = Literal["library", "plain", "whole"]
"""A script as a function of a library, by its digest, or with its text."""


class Server:
    """One server and the connections to it. Thread-safe, and safe to use after a fork."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closed = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._free: list[tuple[Any, float]] = []
        self._checked = False
        self._functions = True
        self._told: set[str] = set()  # as plain scripts, one by one
        self._permitted = False

    # ── what others call ──

    def command(self, *command: bytes | str | int | float, again: bool = True) -> Any:
        """One command's reply. ``again``: it may be sent a second time when the first reply is lost."""
        return self.commands([command], again=again)[0]

    def commands(self, commands: Sequence[Command], *, again: bool = True) -> list[Any]:
        """The replies of several commands that travel together; raises the first error among them."""
        replies = self._exchange(commands, again)
        for reply in replies:
            if isinstance(reply, Exception):
                raise self.error(reply)
        return replies

    def scripts(self, calls: Sequence[Call], *, again: bool = False) -> list[Any]:
        """The replies of several scripts that travel together; what the server does not know is sent to it first."""
        if not self._functions and len(calls) > 1 and not self._told.issuperset(call.script.name for call in calls):
            return [self.scripts([call], again=again)[0] for call in calls]  # what is told later would run too late
        writes, commands = False, []
        for call in calls:
            writes = writes or call.script.writes
            commands.append(self.script_command(call))
        if writes:
            self.ask_permission()
        replies = self._exchange(commands, again, writes)
        for at, reply in enumerate(replies):
            if isinstance(reply, Exception):
                replies[at] = self._taught(calls[at], reply, again, writes)
        if not self._functions:
            self._told.update(call.script.name for call in calls)
        return replies

    def _taught(self, call: Call, reply: Any, again: bool, writes: bool) -> Any:
        """The reply of a script that was answered by an error: the server may not have known it; raises what is one."""
        for _ in range(LESSONS):
            way = self.next_way(reply)
            if way is None:
                break
            (reply,) = self._exchange([self.script_command(call, way)], again, writes)
        if isinstance(reply, Exception):
            raise self.error(reply)
        return reply

    def script_command(self, call: Call, way: Way = "library") -> Command:
        """The command that runs a script."""
        script, args, keys, _ = call
        if way == "whole":
            return ("EVAL", script.text, len(keys), *keys, *args)
        if self._functions and way == "library":
            return ("FCALL", script.function, len(keys), *keys, *args)
        return ("EVALSHA", script.sha, len(keys), *keys, *args)

    def next_way(self, reply: Any) -> Way | None:
        """How to ask again for a script that the server did not know; it may have been told now. None: it knew it."""
        if isinstance(reply, NoScriptError):
            return "whole"
        if not _is_unknown(reply):
            return None
        return "library" if self._teach(reply) else "plain"

    def _teach(self, refusal: Exception) -> bool:
        """Load the library; False: that cannot be, so go on with plain scripts, for now or for ever."""
        if "Function not found" not in str(refusal):
            self._functions = False
            return False
        (reply,) = self._exchange([("FUNCTION", "LOAD", "REPLACE", library().source())], True)
        if isinstance(reply, NoPermissionError) or (isinstance(reply, Exception) and "unknown command" in str(reply)):
            self._functions = False
        elif isinstance(reply, Exception):
            error = self.error(reply)
            if not isinstance(error, StoreFull):  # a full server takes no library, but must let tasks drain
                raise error
        return not isinstance(reply, Exception)

    def ask_permission(self) -> None:
        """Once: whether scripts may write all that they write; raises ConfigError."""
        if self._permitted:
            return
        shown = self.settings.shown
        with self.connection() as connection:
            (begun,) = exchange(shown, connection, [("MULTI",)])
            if not isinstance(begun, Exception):  # else it cannot be asked, and the scripts themselves will tell
                for reply in exchange(shown, connection, rehearsal(self.settings.prefix)):
                    if isinstance(reply, NoPermissionError) or "unknown command" in str(reply):
                        raise self.error(reply)
        self._permitted = True

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection to be used alone; one that an error leaves in an unknown state is closed."""
        connection = self.take()
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            raise
        self.put(connection)

    @contextmanager
    def listening(self) -> Iterator[Any]:
        """A connection of one's own that speaks RESP3, so that the server may say something by itself."""
        if self._closed:
            raise TransportError("this store is closed")
        connection = self._connect(protocol=3)
        try:
            yield connection
        finally:
            connection.disconnect()

    def heard(self, connection: Any, seconds: float) -> bool:
        """Whether the server has said something by itself within this time."""
        try:
            return bool(connection.can_read(seconds))
        except (RedisError, OSError) as error:
            raise OutcomeUnknown(f"{self.settings.shown}: the connection was lost: {error}") from error

    def close(self) -> None:
        """Close all connections that are not in use, and those in use when they come back."""
        self._closed = True
        self._close_free()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # ── exchanges ──

    def _exchange(self, commands: Sequence[Command], again: bool, writes: bool = False) -> list[Any]:
        try:
            return self._send_and_read(commands)
        except OutcomeUnknown as lost:
            if not again or self._closed:
                raise
            try:
                return self._send_and_read(commands)
            except TransportUnavailable as error:
                if writes:  # that nothing happened is true of the second try only
                    raise OutcomeUnknown(f"{lost}; and then: {error}") from error
                raise

    def _send_and_read(self, commands: Sequence[Command]) -> list[Any]:
        connection = self.take()
        try:
            replies = exchange(self.settings.shown, connection, commands)
        except BaseException:
            connection.disconnect()
            raise
        self.put(connection)
        return replies

    def take(self) -> Any:
        """A connection to be used alone: ``put`` it back, or disconnect it. Raises TransportUnavailable."""
        if self._pid != os.getpid():
            self._start_anew()
        if self._closed:
            raise TransportError("this store is closed")
        try:
            connection, used = self._free.pop()
        except IndexError:
            return self._connect()
        if time.monotonic() - used < RESTED or not self._gone(connection):
            return connection
        connection.disconnect()
        return self._connect()

    @staticmethod
    def _gone(connection: Any) -> bool:
        """Whether the other side has closed it; then there is an end of file to be read, or an error."""
        try:
            return bool(connection.can_read(0))
        except (RedisError, OSError):
            return True

    def _connect(self, protocol: int = 2) -> Any:
        settings = self.settings
        try:
            connection = settings.connection_class(
                **{**settings.kwargs, "protocol": protocol}, retry=Retry(NoBackoff(), 0)
            )
        except TypeError as error:
            raise ConfigError(f"{settings.shown}: {error}") from error
        try:
            connection.connect()
            if not self._checked:
                self._check(connection)
                self._checked = True
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise self.error(error) from error
        except BaseException:
            connection.disconnect()
            raise
        return direct(connection) if protocol == 2 else connection

    def put(self, connection: Any) -> None:
        """Give back a connection on which no reply is outstanding."""
        if self._pid != os.getpid():
            connection.disconnect()
            return
        self._free.append((connection, time.monotonic()))
        if self._closed:  # maybe only since it was taken
            self._close_free()

    def _close_free(self) -> None:
        with suppress(IndexError):
            while True:
                self._free.pop()[0].disconnect()

    # ── is this a server for us ──

    def info(self, connection: Any | None = None) -> dict[str, str]:
        """What the server says of itself."""
        if connection is None:
            text = self.command("INFO")
        else:
            (text,) = exchange(self.settings.shown, connection, [("INFO",)])
        if isinstance(text, Exception):
            raise text
        lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
        return {name: value for name, colon, value in lines if colon}

    def _check(self, connection: Any) -> None:
        shown = self.settings.shown
        try:
            info = self.info(connection)
        except ResponseError:
            return  # an ACL may well keep INFO from us; then the verbs themselves will tell
        version = info.get("redis_version", "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers < OLDEST:
            raise ConfigError(f"{shown} is Redis {version}; taskmq needs Redis 6.2 or newer, or Valkey")
        clustered = info.get("redis_mode") == "cluster"
        if clustered and not self.settings.cluster:
            raise ConfigError(
                f"{shown} is a node of a cluster, where tasks of different queues live on different nodes: "
                "add ?cluster=1 to the URL"
            )
        if self.settings.cluster and not clustered:
            raise ConfigError(f"{shown} is a plain server, not a cluster: take cluster=1 out of the URL")
        if clustered and numbers and numbers < OLDEST_CLUSTER:
            raise ConfigError(f"{shown} is Redis {version}; a cluster needs Redis 7.0 or newer, or Valkey")
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and not self.settings.allow_eviction:
            raise ConfigError(
                f"{shown} drops keys when its memory is full (maxmemory-policy {policy}), and tasks with them: "
                "set maxmemory-policy noeviction, or accept it with ?allow_eviction=1"
            )

    def error(self, error: Exception) -> Exception:
        """A driver's error in our words."""
        return error_for(self.settings.shown, error)


def _is_unknown(reply: Any) -> bool:
    """Whether the server has no such function, or does not know of functions at all."""
    if not isinstance(reply, ResponseError):
        return False
    said = str(reply)
    return (
        "Function not found" in said
        or ("unknown command" in said and "FCALL" in said.upper())
        or (isinstance(reply, NoPermissionError) and "fcall" in said.lower())
    )
