"""A child process of the pool ``processes``: what runs in it. ``pools/processes.py`` tells how the two work together.

The main thread runs handlers, one after another, and a second thread reads what the worker says. Between them lies one
deque, and as at the desk *whoever pops a task owns it*: the main thread pops from the left to run it, the reader from
the right to return it. ``async def`` handlers run on an event loop thread of the child.

The end of the socket means that the worker is gone: then the child ends at once, in the middle of a task if need be,
since nobody will take its outcome and the task will be run by another worker. SIGINT and SIGTERM are left to the
worker, who steers: a Ctrl-C in a terminal, or a service manager that stops everything, reaches the children as well.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from taskmq.message import Delivery
from taskmq.outcome import Yield
from taskmq.state import Progress
from taskmq.worker import frames
from taskmq.worker.bell import Bell
from taskmq.worker.blackbox import BlackBox
from taskmq.worker.executor import Executor
from taskmq.worker.failure import describe, trace
from taskmq.worker.home import open_home
from taskmq.worker.interpreter import SWITCH_INTERVAL
from taskmq.worker.logs import log_to_stderr
from taskmq.worker.loop import LoopThread
from taskmq.worker.os_signals import SIGNALS
from taskmq.worker.prefetch import COMPANY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskmq.app import App

WEIGHED = 0.02
"""Seconds between two looks at the memory in use."""
FROM_SOCKET = 1 << 18
ORPHANED = 70
"""Exit code of a child whose worker is gone."""
_YIELD = Yield()


@dataclass(frozen=True, slots=True)
class ChildWorker:
    """What the hooks ``worker_start`` and ``worker_stop`` get in a child process.

    ``name`` is that of the worker, ``pid`` the child's own.
    """

    app: App
    name: str
    pid: int


def main(socket_fd: int, memory_fd: int) -> int:
    """Serve the worker at the other end of this socket; returns the exit code."""
    for number in SIGNALS:  # a handler and not SIG_IGN, which programs that a task starts would inherit
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL)
    line = socket.socket(fileno=socket_fd)
    line.set_inheritable(False)
    box = BlackBox(memory_fd)
    os.close(memory_fd)
    return Child(line, box).serve()


class Child:
    """Runs what comes over ``line`` and keeps ``box``."""

    def __init__(self, line: socket.socket, box: BlackBox) -> None:
        self._line = line
        self._box = box
        self._todo: deque[frames.Work] = deque()
        self._bell = Bell()
        self._leaving = False
        self._sending = Lock()
        self._running: tuple[int, Delivery] | None = None
        self._kept_since: float | None = None
        self._weighed = 0.0
        self._loop = LoopThread()

    def serve(self) -> int:
        """From the first frame to the last."""
        messages = self._messages()
        hello = next(messages)
        assert isinstance(hello, frames.Hello)
        try:
            sys.path[:] = hello.path
            sys.argv[:] = hello.argv  # as for multiprocessing: a program may look at them when it is imported
            app = open_home(hello.home)
        except BaseException as error:
            self._send(frames.frame(frames.Failed(describe(error), trace(error))))
            return 1
        log_to_stderr(hello.log_level)
        self._executor = Executor(app, self._loop, report=self._report)
        me = ChildWorker(app, hello.worker, os.getpid())
        app.hooks.fire("worker_start", me)
        Thread(target=self._read, args=(messages,), name="taskmq-reader", daemon=True).start()
        self._send(frames.frame(frames.Ready(sorted(app.handlers), memory_in_use())))
        self._work()
        app.hooks.fire("worker_stop", me)
        self._loop.stop(1.0)
        return 0

    # ── the main thread ──

    def _work(self) -> None:
        todo = self._todo
        while True:
            try:
                work = todo.popleft()
            except IndexError:
                if self._leaving:
                    return
                self._bell.wait()
                continue
            ended = self._run(work)
            self._keep(ended)
            if not todo or ended.ended - (self._kept_since or ended.ended) > COMPANY:
                self._flush()
                self._weigh(ended.ended)

    def _run(self, work: frames.Work) -> frames.Ended:
        now = time.monotonic()
        if now >= work.usable_until:
            return frames.Ended(work.number, 0.0, now, _YIELD)
        delivery = frames.delivery(work)
        self._running = work.number, delivery
        self._box.start(work.number, now)
        outcome = self._executor.run(delivery)
        self._running = None
        return frames.Ended(work.number, now, time.monotonic(), outcome)

    def _keep(self, ended: frames.Ended) -> None:
        data = frames.frame(ended)
        with self._sending:
            if not self._box.keep(data):
                self._send_kept()
                if not self._box.keep(data):  # larger than the box
                    self._deliver(data)
                    return
            if self._kept_since is None:
                self._kept_since = ended.ended

    def _weigh(self, now: float) -> None:
        if now - self._weighed > WEIGHED:
            self._weighed = now
            self._box.weigh(memory_in_use())

    def _report(self, delivery: Delivery, progress: Progress) -> None:
        running = self._running
        if running is not None and running[1] is delivery:
            self._box.note(running[0], progress)

    # ── both threads ──

    def _flush(self) -> None:
        with self._sending:
            self._send_kept()

    def _send_kept(self) -> None:
        kept = self._box.kept()
        if kept:
            self._deliver(kept)
            self._box.sent()
            self._kept_since = None

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        try:
            self._line.sendall(data)
        except OSError:
            os._exit(ORPHANED)

    # ── the reader ──

    def _read(self, messages: Iterator[Any]) -> None:
        for message in messages:
            kind = type(message)
            if kind is frames.Batch:
                self._todo.extend(message.items)
                self._bell.ring()
            elif kind is frames.TakeBack:
                self._take_back()
            elif kind is frames.Flush:
                self._flush()
            elif kind is frames.Cancel:
                running = self._running
                if running is not None and running[0] == message.number:
                    self._executor.cancel(running[1])
            elif kind is frames.Leave:
                self._leaving = True
                self._bell.ring()

    def _take_back(self) -> None:
        back: list[int] = []
        with suppress(IndexError):
            while True:
                back.append(self._todo.pop().number)
        self._flush()  # what has ended goes first, so that the worker never sees a gap
        self._send(frames.frame(frames.Returned(back[::-1])))

    def _messages(self) -> Iterator[Any]:
        cut = frames.Frames()
        while True:
            try:
                data = self._line.recv(FROM_SOCKET)
            except OSError:
                data = b""
            if not data:
                os._exit(ORPHANED)
            for encoded in cut.feed(data):
                yield frames.to_child.decode(encoded)


def memory_in_use() -> int:
    """Bytes of this process in memory; where that is not told, the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


__all__ = ["ChildWorker", "main", "memory_in_use"]
