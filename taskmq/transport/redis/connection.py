"""The way to the server: settings from a URL, connections, scripts, and the driver's errors in our words.

The driver is redis-py, synchronous and low-level: ``send_packed_command`` and ``read_response`` on a connection of
our own, which costs 48 µs a round trip where its high-level call costs 75. RESP2, because a script's replies change
their shape under RESP3.

A stack of connections: whoever needs one takes the one that was used last, or makes one, so there are as many as
there are callers at once. One that has rested for a second is looked at before it is used, because a server that was
restarted meanwhile has left a dead socket. In a forked child the parent's connections are forgotten and never touched.

What a lost connection means depends on when it is lost. Before the command is sent nothing has happened:
TransportUnavailable. After that nobody knows: OutcomeUnknown – unless the verb may be sent again, then it is, once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as TimedOut
from redis.retry import Retry

from taskmq.errors import ConfigError, OutcomeUnknown, StoreFull, TransportError, TransportUnavailable
from taskmq.transport.redis.keys import DEFAULT_PREFIX
from taskmq.transport.redis.scripts import Script, library
from taskmq.urls import without_secrets

try:
    import hiredis

    _pack: Any = hiredis.pack_command
except ImportError:  # it comes with taskmq[redis]; without it everything is slower
    _pack = None

RESTED = 1.0
"""Seconds after which a connection is looked at before it is used."""
CONNECT_TIMEOUT = 5.0
REPLY_TIMEOUT = 30.0
OLDEST = (6, 2)
_DRIVER_OPTIONS = frozenset(
    {
        *("db", "socket_timeout", "socket_connect_timeout", "socket_keepalive", "client_name"),
        *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"),
        *("ssl_cert_reqs", "ssl_check_hostname"),
    }
)
_OWN_OPTIONS = ("prefix", "lua", "cluster", "allow_eviction")

Command = Sequence[bytes | str | int | float]


class Settings:
    """A ``redis://``, ``rediss://``, ``valkey://`` or ``unix://`` URL, taken apart; raises ConfigError."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        given = dict(query)
        self.shown = without_secrets(url)
        unknown = sorted(set(given) - set(_OWN_OPTIONS) - _DRIVER_OPTIONS)
        if unknown:
            known = ", ".join((*_OWN_OPTIONS, *sorted(_DRIVER_OPTIONS)))
            raise ConfigError(f"{self.shown}: unknown option {unknown[0]!r}; there are {known}")
        self.prefix = given.get("prefix", DEFAULT_PREFIX)
        self.lua = self._switch(given, "lua", {"on": True, "off": False}, True)
        self.cluster = self._switch(given, "cluster", {"1": True, "0": False}, False)
        self.allow_eviction = self._switch(given, "allow_eviction", {"1": True, "0": False}, False)
        if self.cluster:
            raise ConfigError(f"{self.shown}: this version has no cluster mode yet")
        if not self.prefix:
            raise ConfigError(f"{self.shown}: the prefix is empty; it keeps this program's keys apart from others'")
        rest = urlencode([(name, value) for name, value in query if name not in _OWN_OPTIONS])
        scheme = "redis" if parts.scheme == "valkey" else parts.scheme
        try:
            kwargs = parse_url(  # type: ignore[no-untyped-call]
                f"{scheme}://{parts.netloc}{parts.path}?{rest}"
            )
        except ValueError as error:
            raise ConfigError(f"{self.shown}: {error}") from error
        if scheme == "unix" and not kwargs.get("path"):
            raise ConfigError(f"{self.shown}: a unix:// URL needs the path of a socket, unix:///run/redis.sock?db=0")
        path = parts.path.strip("/")
        if scheme != "unix" and path and not path.isdigit():
            raise ConfigError(f"{self.shown}: the path must be the number of a database, not {path!r}")
        self.connection_class = kwargs.pop("connection_class", redis.Connection)
        self.kwargs: dict[str, Any] = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_timeout": REPLY_TIMEOUT,
            **kwargs,
            "protocol": 2,
        }

    def _switch(self, given: dict[str, str], name: str, values: dict[str, bool], default: bool) -> bool:
        if name not in given:
            return default
        if given[name] not in values:
            raise ConfigError(f"{self.shown}: {name}={given[name]} is none of {', '.join(values)}")
        return values[given[name]]


class Server:
    """One server and the connections to it. Thread-safe, and safe to use after a fork."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._mutex = threading.Lock()
        self._closed = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._free: list[tuple[Any, float]] = []
        self._checked = False
        self._functions = True

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

    def script(self, script: Script, args: Sequence[Any], *, again: bool = False) -> Any:
        """One script's reply."""
        return self.scripts([(script, args)], again=again)[0]

    def scripts(self, calls: Sequence[tuple[Script, Sequence[Any]]], *, again: bool = False) -> list[Any]:
        """The replies of several scripts that travel together; what the server does not know is sent to it first."""
        replies = self._exchange([self._call(script, args) for script, args in calls], again)
        for at, reply in enumerate(replies):
            script, args = calls[at]
            if _is_unknown(reply):
                self._teach()
                replies[at] = reply = self._exchange([self._call(script, args)], again)[0]
            if isinstance(reply, NoScriptError):
                replies[at] = reply = self._exchange([("EVAL", script.text, 0, *args)], again)[0]
            if isinstance(reply, Exception):
                raise self.error(reply)
        return replies

    def _call(self, script: Script, args: Sequence[Any]) -> Command:
        return ("FCALL", script.function, 0, *args) if self._functions else ("EVALSHA", script.sha, 0, *args)

    def _teach(self) -> None:
        """Load the library; where that is not possible, go on with plain scripts."""
        (reply,) = self._exchange([("FUNCTION", "LOAD", "REPLACE", library().source())], True)
        if isinstance(reply, NoPermissionError) or (isinstance(reply, Exception) and "unknown command" in str(reply)):
            self._functions = False
        elif isinstance(reply, Exception):
            raise self.error(reply)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection to be used alone; one that an error leaves in an unknown state is closed."""
        connection = self._take()
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            raise
        self._put(connection)

    def close(self) -> None:
        """Close all connections that are not in use, and those in use when they come back."""
        with self._mutex:
            self._closed = True
            free, self._free = self._free, []
        for connection, _ in free:
            connection.disconnect()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # ── exchanges ──

    def _exchange(self, commands: Sequence[Command], again: bool) -> list[Any]:
        try:
            return self._send_and_read(commands)
        except OutcomeUnknown:
            if not again or self._closed:
                raise
            return self._send_and_read(commands)

    def _send_and_read(self, commands: Sequence[Command]) -> list[Any]:
        with self.connection() as connection:
            return exchange(self.settings.shown, connection, commands)

    def _take(self) -> Any:
        if self._pid != os.getpid():
            self._mutex = threading.Lock()
            self._start_anew()
        with self._mutex:
            if self._closed:
                raise TransportError("this store is closed")
            connection, used = self._free.pop() if self._free else (None, 0.0)
        if connection is not None:
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

    def _connect(self) -> Any:
        settings = self.settings
        try:
            connection = settings.connection_class(**settings.kwargs, retry=Retry(NoBackoff(), 0))
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
        return connection

    def _put(self, connection: Any) -> None:
        with self._mutex:
            if not self._closed and self._pid == os.getpid():
                self._free.append((connection, time.monotonic()))
                return
        connection.disconnect()

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
        if info.get("redis_mode") == "cluster":
            raise ConfigError(
                f"{shown} is a node of a cluster, where tasks of different queues live on different nodes; "
                "this version works with single servers only"
            )
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


def exchange(shown: str, connection: Any, commands: Sequence[Command]) -> list[Any]:
    """Send commands together and read all replies, errors among them."""
    try:
        connection.send_packed_command([_packed(connection, commands)], check_health=False)
    except (ConnectionLost, TimedOut, OSError) as error:
        raise OutcomeUnknown(f"{shown}: the connection was lost: {error}") from error
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except (ResponseError, AuthenticationError) as error:
            replies.append(error)
        except BusyLoadingError as error:
            raise TransportUnavailable(f"{shown} is loading its data: {error}") from error
        except (ConnectionLost, TimedOut, OSError) as error:
            raise OutcomeUnknown(f"{shown}: the answer was lost: {error}") from error
    return replies


def _packed(connection: Any, commands: Sequence[Command]) -> bytes:
    """Commands as they travel, in one piece. The driver's own packing looks at each argument before hiredis does."""
    if _pack is None:
        return b"".join(piece for command in commands for piece in connection.pack_command(*command))
    return b"".join([_pack(tuple(command)) for command in commands])


_MEANINGS: tuple[tuple[str, type[TransportError] | type[ConfigError], str], ...] = (
    ("OOM", StoreFull, "has no memory left (maxmemory): nothing was stored; give it more or let tasks drain"),
    ("command not allowed when used memory", StoreFull, "has no memory left (maxmemory): nothing was stored"),
    ("WRONGPASS", ConfigError, "refuses the user name or password of the URL"),
    ("invalid username-password", ConfigError, "refuses the user name or password of the URL"),
    ("invalid password", ConfigError, "refuses the password of the URL"),
    ("NOAUTH", ConfigError, "asks for a password: write it into the URL, redis://:password@host"),
    ("Authentication required", ConfigError, "asks for a password: write it into the URL, redis://:password@host"),
    ("NOPERM", ConfigError, "does not let this user do what taskmq needs; see its ACL"),
    ("can't run this command", ConfigError, "does not let this user do what taskmq needs; see its ACL"),
    ("no permissions", ConfigError, "does not let this user do what taskmq needs; see its ACL"),
    ("READONLY", TransportError, "is a read-only replica: give the URL of its primary"),
    ("read only replica", TransportError, "is a read-only replica: give the URL of its primary"),
    ("MISCONF", TransportError, "cannot save to its disk and therefore takes no writes"),
    ("LOADING", TransportUnavailable, "is loading its data; try again soon"),
    ("BUSY", TransportUnavailable, "is busy with somebody's long script; try again soon"),
    ("MOVED", ConfigError, "is a node of a cluster; this version works with single servers only"),
    ("MASTERDOWN", TransportUnavailable, "has lost its primary"),
    ("max number of clients", TransportUnavailable, "has as many clients as it takes (maxclients)"),
    ("DB index is out of range", ConfigError, "has no database of that number"),
    ("unknown command", TransportError, "does not know a command that taskmq needs"),
)


def error_for(shown: str, error: Exception) -> Exception:
    """The driver's error in our words, with the server's own behind them."""
    if not isinstance(error, (RedisError, OSError)):
        return error
    said = str(error)
    for sign, kind, words in _MEANINGS:
        if sign in said or type(error).__name__.upper().startswith(sign):
            mapped: Exception = kind(f"{shown} {words} ({said})")
            break
    else:
        if isinstance(error, AuthenticationError):
            mapped = ConfigError(f"{shown} refuses the user name or password of the URL ({said})")
        elif isinstance(error, (ConnectionLost, TimedOut, OSError)):
            mapped = TransportUnavailable(f"{shown} cannot be reached: {said}")
        else:
            mapped = TransportError(f"{shown}: {said}")
    mapped.__cause__ = error
    return mapped
