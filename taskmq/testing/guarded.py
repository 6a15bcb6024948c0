"""Processes that end with the one that started them, however that one ends.

A test process that is killed runs no exit handlers, and a server would stay behind with its folder. The kernel's own
word for it (PR_SET_PDEATHSIG) asks about the thread that started the process, and threads of tests end. So a shell
waits at a pipe whose other end only this process has: when it is closed without a word, the shell ends the server.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

_WATCH = 'read word || { kill -9 "$0"; sleep 1; rm -rf "$1"; }'


class GuardedProcess(subprocess.Popen[bytes]):
    """A process that ends with this one, and takes its folder with it when it had to be ended."""

    def __init__(self, command: list[str], folder: str, **words: Any) -> None:
        self._watch: subprocess.Popen[bytes] | None = None
        super().__init__(command, **words)
        self._watch = subprocess.Popen(
            ["sh", "-c", _WATCH, str(self.pid), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # what is sent to the tests' group of processes is not meant for it
        )
        self._owner = os.getpid()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; nobody needs to watch it any more."""
        code = super().wait(timeout)
        watch, self._watch = self._watch, None
        if watch is not None and os.getpid() == self._owner:
            watch.communicate(b"over\n")
        return code
