"""Where a script runs: on the server, or in this process against it (``?lua=off``); in a cluster see nodes.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from taskmq.transport.base import Finding
from taskmq.transport.redis.checkup import checkup
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.exchange import Command, exchange, is_woken
from taskmq.transport.redis.scripts import Call
from taskmq.transport.redis.settings import Settings


class Runner(Protocol):
    """A server or a cluster, and a way to run scripts on it."""

    @property
    def settings(self) -> Settings:
        """What the URL says."""
        ...

    def scripts(self, calls: Sequence[Call], *, again: bool = False) -> list[Any]:
        """The replies of several scripts, in as few exchanges as may be.

        ``again``: they may be run a second time when a reply is lost.
        """
        ...

    def command(self, *command: bytes | str | int | float) -> Any:
        """A command's reply."""
        ...

    def commands(self, commands: Sequence[Command]) -> list[Any]:
        """The replies of several commands, in one exchange."""
        ...

    def block(self, command: Command) -> None:
        """Send a command that waits, and wait."""
        ...

    def server_of(self, key: bytes) -> Server:
        """The server that has a key."""
        ...

    def checkup(self) -> list[Finding]:
        """What is wrong with the server's settings."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OneServer:
    """What both ways have in common: a server of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.settings = server.settings
        self.command = server.command
        self.commands = server.commands
        self.close = server.close

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.server.closed

    def block(self, command: Command) -> None:
        """Send a command that waits, and wait."""
        with self.server.connection() as connection:
            (reply,) = exchange(self.settings.shown, connection, [command])
        if isinstance(reply, Exception) and not is_woken(reply):
            raise self.server.error(reply)

    def server_of(self, key: bytes) -> Server:
        """The server that has a key."""
        return self.server

    def checkup(self) -> list[Finding]:
        """What is wrong with the server's settings."""
        return checkup(self.server)


class OnServer(OneServer):
    """Scripts run where the data are."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.scripts = server.scripts
