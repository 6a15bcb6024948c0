"""A worker: start, stop, drain. State and wiring only; the work is done by the threads it starts.

::

            store                          store                      store
              ▲ settle + reserve             ▲ wait                     ▲ extend, heartbeat
              │ in one exchange              │                          │
    main    FETCH ◄──── there may be work ─ WAITER                    HEARTBEAT     UPKEEP
   signals    │   ▲                                                     │ reads
              ▼   │ outcomes                                            ▼
            the desk: ten priority deques, parked locks             the ledger: all jobs in hand
              ▼   │
            POOL: N handler threads, or solo: the fetch thread itself

How it stops, and why in this order
-----------------------------------

1. *Stop reserving.* No new work may come in, or there is no end. The waiter is told and not joined: it may be blocked
   for a second, and it cannot do harm.
2. *Hand back what is held*, from the tail, in one settle, at once: other workers start it immediately instead of after
   a lease. From the tail, so that at no moment a later task stands in line while an earlier one is still here.
3. *Let running tasks go on* for ``grace`` seconds. The heartbeat stays alive all the while, otherwise leases end
   during a long grace and the tasks run twice.
4. *Settle what ends*, until nothing runs. Each settle is acknowledged before anything is closed.
5. *Grace over:* running tasks are told to stop (``current().cancelled``; coroutines are cancelled), and have a last
   moment to. What still runs then is given back: it is retried at once by others, or dead if that was its last
   attempt – not left to its lease, which could block an ordered partition for half a minute. Its late result changes
   nothing, for the store knows its epoch no more.
6. *Stop the handlers, then the heartbeat, then forget the worker's row*; exit code 0. Only now is nothing left that
   would need a lease, and only now is the worker gone for operators, too.

A second signal makes grace end now, so it goes to 5. Handler threads are daemons: a stuck one cannot block the exit.

When one of the worker's own threads dies of an unexpected exception, a worker that went on would be half alive: without
a heartbeat tasks run twice, without fetching nothing runs and nobody notices. So it stops in the same order, says why,
and ``run`` returns 1 (``join`` raises).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from threading import Event, Lock, Thread
from time import monotonic, time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any

from taskmq import __version__
from taskmq.durations import Duration, seconds
from taskmq.errors import TaskMQError, TransportError
from taskmq.queue import QueueConfig
from taskmq.transport.base import Store, WorkerInfo
from taskmq.worker.bell import Bell
from taskmq.worker.executor import Executor
from taskmq.worker.fetch import Fetch
from taskmq.worker.handoff import Desk
from taskmq.worker.heartbeat import Heartbeat
from taskmq.worker.home import find_home, refuse_inside
from taskmq.worker.interpreter import SWITCH_INTERVAL, switching
from taskmq.worker.loop import LoopThread
from taskmq.worker.news import News
from taskmq.worker.options import MAX_GRACE, check_options, unenforced_timeouts
from taskmq.worker.os_signals import SignalWaiter
from taskmq.worker.pools import Pool
from taskmq.worker.service import Services
from taskmq.worker.settling import Settling
from taskmq.worker.shutdown import Shutdown
from taskmq.worker.stats import Stats
from taskmq.worker.upkeep import Upkeep
from taskmq.worker.wait import Waiter

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.worker.frames import Hello

log = logging.getLogger("taskmq.worker")

JOIN = 1.0
"""Seconds to wait for each service thread at the end; a store that hangs must not hold up the exit."""
HANGING = 10.0
"""Seconds beyond the end of grace after which ``run`` returns although the store has not."""


class Worker:
    """Runs tasks of ``app``.

    ``queues``       names, or text like ``"a,b"``; ``"b=3"`` also gives b its weight in the store, as a seed of
                     ``Config.queues`` would; None: the queues of all handlers
    ``concurrency``  how many tasks at once, 1 to 1000; None: a few more than CPUs, 1 for solo, 100 for asyncio, CPUs
                     for processes
    ``pool``         ``"threads"``, ``"solo"``, ``"asyncio"`` or ``"processes"``
    ``prefetch``     ``"auto"``: about 20 ms of work; or how many to hold beyond the running ones, 0 to 1000
    ``grace``        how long running tasks may go on when it stops; None: the app's
    ``name``         its id among the workers; None: made of host, process and chance
    ``apply_config`` set the queues in the store as the app and ``queues`` have them, instead of reporting what differs
    ``max_tasks_per_child`` and ``max_memory_per_child`` (MiB) of pool processes: a child is replaced after so many
                     tasks, or when it has so much in memory
    ``import_as``    ``"module:attribute"`` under which the children of pool processes import the app; None: looked for

    ``run`` blocks until a signal comes. Embedded, use it as a context manager or call ``start`` and ``stop``.
    Raises InvalidArgument for an option outside its range.
    """

    def __init__(
        self,
        app: App,
        queues: str | Iterable[str] | None = None,
        concurrency: int | None = None,
        pool: str = "threads",
        prefetch: int | str = "auto",
        grace: Duration | None = None,
        name: str | None = None,
        *,
        apply_config: bool = False,
        max_tasks_per_child: int | None = None,
        max_memory_per_child: int | None = None,
        import_as: str | None = None,
    ) -> None:
        self.app = app
        self.options = check_options(
            name=name,
            queues=queues,
            default_queues=(task.queue for task in app.handlers.values()),
            concurrency=concurrency,
            pool=pool,
            prefetch=prefetch,
            grace=app.config.grace if grace is None else grace,
            lease=round(app.config.lease_s * 1e6),
            max_tasks=max_tasks_per_child,
            max_memory=max_memory_per_child,
        )
        self._apply_config = apply_config
        self._import_as = import_as
        for task in app.handlers.values():
            if task.pool is not None and task.pool != pool:
                log.warning("handler %s asks for pool %s; this worker runs %s", task.name, task.pool, pool)
        self.name = self.options.name
        self._stats = Stats()
        self._loop = LoopThread()
        self._news = News()
        self._executor = Executor(app, self._loop, report=self._news.tell)
        self._desk = Desk(self.options.concurrency)
        self._settling = Settling(self._desk, self._stats)
        self._pool = self._make_pool()
        self._shutdown = Shutdown(self._desk, self._settling, self._pool, self.options.grace)
        self._services = Services(self.name, self._ask_after_failure)
        self._threads: list[Thread] = []
        self._started_at = 0
        self._starting = Lock()
        self._ending = Lock()
        self._finished = Event()
        self._signals = SignalWaiter(self._shutdown.ask, lambda: self._shutdown.ask(0.0))

    def __repr__(self) -> str:
        return f"<Worker {self.name}>"

    @property
    def stats(self) -> Stats:
        """What it has done so far."""
        return self._stats

    # ── embedded ──

    def start(self) -> None:
        """Start working, in threads; returns at once. A worker can be started once.

        Raises ConfigError or TransportError when the app's store cannot be opened, and ConfigError when the children of
        pool processes could not import the app.
        """
        with self._starting:
            if self._started_at or self._finished.is_set():
                raise TaskMQError(f"worker {self.name} has been started or stopped before: make another one")
            refuse_inside()
            if self.options.pool == "processes":
                self._home = find_home(self.app, self._import_as)
            store = self.app.store
            self._started_at = time_ns() // 1000
        self._configure(store)
        self._warn(store)
        self._wire(store)
        log.info("worker %s: queues %s, %s", self.name, ",".join(self.options.queues), self._describe())
        self.app.hooks.fire("worker_start", self)
        try:
            self._launch()
        except BaseException:  # no more threads to be had: end those that did start
            self._shutdown.ask(0.0)
            self._end()
            raise

    def stop(self, grace: Duration | None = None) -> None:
        """Stop in the order told above and wait for the end; ``grace`` overrides the worker's own.

        Raises what one of its threads has died of, if one has.
        """
        self.ask_to_stop(grace)
        self.join()

    def ask_to_stop(self, grace: Duration | None = None) -> None:
        """Begin to stop and return at once. Asking again can only shorten the grace."""
        self._shutdown.ask(None if grace is None else seconds("grace", grace, 0.0, MAX_GRACE))
        self._signals.ring()
        if not self._started_at:
            self._finished.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has stopped; False when the timeout (in seconds) is over before.

        Raises what one of its threads has died of, if one has.
        """
        ended = self._finished.wait(timeout)
        if ended and self._services.failure is not None:
            raise self._services.failure
        return ended

    def drain(self, timeout: float | None = None) -> bool:
        """Work until the queues have nothing ready and nothing is in hand; True then, False when time is over.

        Tasks due later do not count. Raises what one of the worker's threads has died of, if one has.
        """
        if not self._started_at:
            raise TaskMQError(f"worker {self.name} has not been started: use it in a with statement, or call start()")
        bell = Bell()
        self._fetch.ask_drained(bell)
        deadline = None if timeout is None else monotonic() + timeout
        while not self._finished.is_set():
            left = 0.5 if deadline is None else min(0.5, deadline - monotonic())
            if bell.wait(left):
                return True
            if deadline is not None and monotonic() >= deadline:
                return False
        self.join()
        return False

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BaseException:
            if error is None:
                raise

    # ── as a process ──

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, then stop; the second signal ends now. Returns the exit code: 0, or 1 when one
        of the worker's threads has died.
        """
        with self._signals as signals, switching(SWITCH_INTERVAL):
            self.start()
            while not self._finished.is_set():
                signals.wait(self._patience())
                if monotonic() > self._shutdown.latest_end + HANGING:
                    log.critical("worker %s: the store hangs; leaving without its answer", self.name)
                    return 1
        return 0 if self._services.failure is None else 1

    def _patience(self) -> float | None:
        """How long to sleep before looking whether the store hangs; for ever until a stop is asked for."""
        return 0.5 if self._shutdown.asked else None

    # ── inside ──

    def _make_pool(self) -> Pool:
        """Each pool is imported by those who use it: asyncio alone costs 35 ms."""
        if self.options.pool == "asyncio":
            from taskmq.worker.pools.asyncio import AsyncioPool

            return AsyncioPool(self._desk, self._executor, self._loop)
        if self.options.pool == "solo":
            from taskmq.worker.pools.solo import SoloPool

            return SoloPool(self._desk, self._executor)
        if self.options.pool == "processes":
            from taskmq.worker.pools.processes import ProcessesPool

            options = self.options
            return ProcessesPool(
                self._desk, self._executor, self._hello, self._news, options.max_tasks, options.max_memory
            )
        from taskmq.worker.pools.threads import ThreadsPool

        return ThreadsPool(self._desk, self._executor)

    def _wire(self, store: Store) -> None:
        options = self.options
        self._store = store
        self._waiter = Waiter(store, options.queues, self._desk.wake)
        self._heartbeat = Heartbeat(store, self._settling.ledger, self._pool, self._row, options.lease, self._news)
        self._upkeep = Upkeep(store, self.name)
        self._fetch = Fetch(store, self._desk, self._settling, self._shutdown, self._waiter, options)
        self._fetch.on_lease = self._heartbeat.notice

    def _launch(self) -> None:
        start = self._services.start
        self._threads = [
            start("heartbeat", self._heartbeat.run),
            start("waiter", self._waiter.run),
            start("upkeep", self._upkeep.run),
        ]
        self._pool.start(self._services, self._fetch, self._end)
        start("fetch", self._work)

    def _work(self) -> None:
        """The life of the fetch thread."""
        try:
            self._pool.serve(self._fetch)
        except BaseException as error:  # the guard would come too late: the end is prepared here
            self._services.failed("fetch", error)
        self._end()

    def _end(self) -> None:
        """What comes after the fetch loop, once. On a thread of the worker, so that one nobody waits for ends, too."""
        if not self._ending.acquire(blocking=False):
            return
        try:
            self._finish()
        finally:
            self._finished.set()
            self._signals.ring()

    def _ask_after_failure(self) -> None:
        """Stop while leases still hold, even if it was the heartbeat that died."""
        self._shutdown.ask(min(self.options.grace, self.options.lease / 2e6))

    def _finish(self) -> None:
        """Step 6: nothing runs that would need a lease any more."""
        self._desk.close()
        with suppress(TransportError):
            self._waiter.stop()
        self._heartbeat.stop()
        self._upkeep.stop()
        deadline = monotonic() + JOIN
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        self._pool.stop()
        self._loop.stop(JOIN)
        with suppress(TransportError):
            self._store.forget(self.name)
        self.app.hooks.fire("worker_stop", self)
        log.info("worker %s has stopped: %s", self.name, self._stats)

    def _hello(self) -> Hello:
        """What a child process is told first."""
        from taskmq.worker.frames import Hello

        path = [entry for entry in sys.path if isinstance(entry, str)]
        level = logging.getLogger("taskmq").getEffectiveLevel()
        return Hello(path, list(sys.argv), self._home, level, self.name)

    def _configure(self, store: Store) -> None:
        """Seed the queues; what differs is reported, not overwritten: an operator's change survives a deployment."""
        queues = dict(self.app.config.queues)
        try:
            for name, weight in self.options.weights.items():
                queues[name] = replace(queues.get(name) or _config_in(store, name), weight=weight)
            drift = store.configure_queues(queues, overwrite=self._apply_config)
        except TransportError as error:
            log.warning("the store fails (%s): whether the queues' settings drifted is not known", error)
            return
        for queue, fields in drift.items():
            if self._apply_config:
                log.info("queue %s: %s set as the app has them", queue, ", ".join(fields))
            else:
                log.warning(
                    "queue %s: the store's %s differ from the app's; the store's hold", queue, ", ".join(fields)
                )

    def _warn(self, store: Store) -> None:
        """What this pool cannot do for these handlers, and this store not for this pool."""
        pool = self.options.pool
        handlers = [(task.name, task.timeout is not None, task.is_coroutine) for task in self.app.handlers.values()]
        unenforced = unenforced_timeouts(handlers, pool)
        if unenforced:
            log.warning(
                "pool %s cannot end a function that outlasts its timeout, only tell it (current().cancelled): %s. Pool "
                "processes can; an async def can be ended in any pool",
                pool,
                ", ".join(unenforced),
            )
        if pool == "processes" and not store.capabilities.shared:
            log.warning(
                "the store %s is of this process alone: what a handler publishes in a child process goes nowhere",
                self.app.config.safe_url,
            )

    def _row(self) -> WorkerInfo:
        running = sum(job is not None for job in self._desk.running)
        return WorkerInfo(
            id=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.options.queues,
            pool=self.options.pool,
            concurrency=self.options.concurrency,
            version=__version__,
            started_at=self._started_at,
            handlers=tuple(sorted(self.app.handlers)),
            running=running,
            held=max(0, self._settling.in_hand - running),
            clock=time_ns() // 1000,
        )

    def _describe(self) -> str:
        prefetch: Any = "auto" if self.options.prefetch is None else self.options.prefetch
        return f"pool {self.options.pool}, concurrency {self.options.concurrency}, prefetch {prefetch}"


def _config_in(store: Store, queue: str) -> QueueConfig:
    """The queue's settings as they stand: a weight given by name must not change the others."""
    found = store.stats([queue])
    return found[0].config if found else QueueConfig()


__all__ = ["Worker"]
