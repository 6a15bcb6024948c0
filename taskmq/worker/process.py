"""One child process as its worker sees it: a socket, a black box, and what it is told and does in between."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import taskmq
from taskmq.worker import frames
from taskmq.worker.blackbox import BlackBox, shared_memory

FROM_SOCKET = 1 << 18
FREEZING = 0.05
"""The longest that a process may take to stop; one that hangs in the kernel takes longer."""
BURYING = 1.0
"""Seconds between the end of its socket and the end of a process, before it is killed."""

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from taskmq.worker.child import main; "
    "sys.exit(main(int(sys.argv[2]), int(sys.argv[3])))"
)
_ROOT = str(Path(taskmq.__file__).resolve().parent.parent)


class Process:
    """A child process. Nothing here blocks, except ``freeze`` and ``bury`` for a moment.

    ``box`` outlives it, for whoever still looks into it, and is let go with the last reference to this.
    """

    def __init__(self, hello: bytes) -> None:
        ours, theirs = socket.socketpair()
        memory = shared_memory()
        try:
            self.box = BlackBox(memory)
            command = [sys.executable, *_flags(), "-c", _START, _ROOT, str(theirs.fileno()), str(memory)]
            # A fresh interpreter and no fork: this process has threads, and a fork would copy their locks as they are.
            self._popen = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), memory), close_fds=True
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
        ours.setblocking(False)
        self.line = ours
        self.pid = self._popen.pid
        self.started_at = monotonic()
        self.death: int | None = _death_watch(self.pid)
        """A descriptor that can be read once it is dead, although something it forked keeps its socket open."""
        self._out = bytearray()
        self._cut = frames.Frames()
        self.send(hello)

    # ── talking ──

    @property
    def stuck(self) -> bool:
        """Whether something waits until the socket takes more."""
        return bool(self._out)

    def send(self, data: bytes) -> None:
        """Send it, as far as the socket takes it now; ``push`` sends the rest."""
        self._out += data
        self.push()

    def push(self) -> None:
        """Send what could not be sent yet."""
        try:
            while self._out:
                del self._out[: self.line.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:  # it is dead, which the reading side finds out
            self._out.clear()

    def receive(self) -> tuple[list[Any], bool]:
        """What it has said; and whether it may say more."""
        said: list[Any] = []
        while True:
            try:
                data = self.line.recv(FROM_SOCKET)
            except BlockingIOError:
                return said, True
            except OSError:
                data = b""
            if not data:
                return said, False
            said += map(frames.to_worker.decode, self._cut.feed(data))

    def unsent(self) -> Iterator[Any]:
        """The outcomes it has not sent. Exact only while it is frozen or dead."""
        return map(frames.to_worker.decode, frames.Frames().feed(self.box.kept()))

    # ── force ──

    def freeze(self) -> bool:
        """Stop it where it is; False when that cannot be told."""
        try:
            os.kill(self.pid, signal.SIGSTOP)
            end = monotonic() + FREEZING
            while monotonic() < end:
                if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    return True
                sleep(0.0005)
        except OSError:
            pass
        return False

    def thaw(self) -> None:
        """Let it go on."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it now."""
        self._popen.kill()

    def bury(self) -> str:
        """Wait until it is dead, helping if need be, and say how it died. Its box can still be read."""
        try:
            code = self._popen.wait(BURYING)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            code = self._popen.wait()
        self.line.close()
        if self.death is not None:
            os.close(self.death)
            self.death = None
        return cause_of_death(code)


def cause_of_death(code: int) -> str:
    """A return code in words: ``was killed by SIGSEGV``."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _flags() -> list[str]:
    """The options of this interpreter that change what code does."""
    options = ["-O"] * sys.flags.optimize
    options += [f"-W{option}" for option in sys.warnoptions]
    options += [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    return options


def _death_watch(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


__all__ = ["Process", "cause_of_death"]
