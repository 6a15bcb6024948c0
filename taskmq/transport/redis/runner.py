"""Where a script runs: on the server, or in this process against it (``?lua=off``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from taskmq.transport.base import Finding
from taskmq.transport.redis.checkup import checkup
from taskmq.transport.redis.connection import Command, Server
from taskmq.transport.redis.scripts import Script


class Runner(Protocol):
    """A server, and a way to run scripts on it."""

    server: Server
    prefix: str

    def script(self, script: Script, args: Sequence[Any], *, again: bool = False) -> Any:
        """A script's reply. ``again``: it may be run a second time when the reply is lost."""
        ...

    def scripts(self, calls: Sequence[tuple[Script, Sequence[Any]]], *, again: bool = False) -> list[Any]:
        """The replies of several scripts, in as few exchanges as may be."""
        ...

    def command(self, *command: bytes | str | int | float) -> Any:
        """A command's reply."""
        ...

    def commands(self, commands: Sequence[Command]) -> list[Any]:
        """The replies of several commands, in one exchange."""
        ...

    def checkup(self) -> list[Finding]:
        """What is wrong with the server's settings."""
        ...


class OnServer:
    """Scripts run where the data are."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.prefix = server.settings.prefix
        self.script = server.script
        self.scripts = server.scripts
        self.command = server.command
        self.commands = server.commands

    def checkup(self) -> list[Finding]:
        """What is wrong with the server's settings."""
        return checkup(self.server)
