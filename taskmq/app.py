"""App: a store's URL, the handlers, and everything that can be asked of them from here."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from taskmq.config import Config, ConfigSettings
from taskmq.control import DeadLetters, PartitionControl, QueueControl, TaskQuery, task_query
from taskmq.errors import ConfigError, InvalidArgument, TransportError
from taskmq.handle import Handle, find_task
from taskmq.hooks import Event, Hook, Hooks
from taskmq.message import Message
from taskmq.names import check_code, check_name, short
from taskmq.options import PublishOptions, refuse_unknown
from taskmq.state import TaskInfo, TaskState
from taskmq.task import AsyncTask, P, R, Ref, Task, TaskOptions, ref
from taskmq.transport.base import PUBLISH_BATCH, Finding, Publish, Receipt, Store, Transactional
from taskmq.transport.registry import open_store
from taskmq.why import why

if TYPE_CHECKING:
    from taskmq.worker.worker import Worker

H = TypeVar("H", bound=Hook)


class TaskDecorator(Protocol):
    """What ``app.task(…)`` with options returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class App:
    """One store and the handlers whose tasks go through it. Thread-safe.

    ``App()`` takes the URL from ``TASKMQ_URL``, else ``sqlite:///taskmq.db``; ``App(url, lease=…, queues=…)`` is short
    for ``App(Config(url=url, lease=…, queues=…))``. The store is opened at its first use. Usable as a context manager.

    Raises ConfigError, which names every fault.
    """

    def __init__(self, config: Config | str | None = None, /, **settings: Unpack[ConfigSettings]) -> None:
        self.config = _as_config(config, settings)
        self.hooks = Hooks()
        self._handlers: dict[str, Task[..., Any]] = {}
        self._store: Store | None = None
        self._closed = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<App {self.config.safe_url}>"

    def __enter__(self) -> App:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def store(self) -> Store:
        """The open store; ``Config.queues`` have seeded its queues.

        Raises ConfigError for a URL no store knows, TransportError if it cannot be opened or the app is closed.
        """
        return self._store or self._open()

    def close(self) -> None:
        """Close the store, if it is open; for good."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()

    # ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def handlers(self) -> Mapping[str, Task[..., Any]]:
        """The registered handlers by name."""
        return MappingProxyType(self._handlers)

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Register a function as a handler: ``@app.task`` or ``@app.task(queue=…, …)``, see ``TaskOptions``.

        Raises InvalidArgument for an option outside its range, ConfigError if another handler has this name.
        """
        if function is not None:
            return self._register(function, options)
        return lambda function: self._register(function, options)

    def ref(self, name: str, /, **options: Unpack[PublishOptions]) -> Ref:
        """A handler by name, for where its code is not at hand; any JSON-like arguments are accepted.

        Raises InvalidArgument.
        """
        return ref(self, name, options)

    def on(self, event: Event) -> Callable[[H], H]:
        """Call the decorated function at an event; what it raises is logged and changes nothing.

        ``worker_start`` and ``worker_stop`` get the Worker, ``before_enqueue`` the Message, ``before_run`` the Context,
        ``after_run`` the Context and the Outcome, ``failed`` the Context and the exception of an attempt, ``dead`` the
        Context and the Outcome. Raises InvalidArgument for an unknown event.
        """

        def register(hook: H) -> H:
            self.hooks.add(event, hook)
            return hook

        return register

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue_many(self, messages: Iterable[Message], *, connection: Any = None) -> list[Handle[Any]]:
        """Publish messages (``send.message(…)``), in order, and return a handle for each.

        Up to 1,000 are stored all or none. More are sent in chunks of 1,000, each of them all or none: if one fails,
        the chunks before it are stored and the error is raised.

        ``connection``: publish in the open transaction of this connection to the store's own database (a driver's or
        SQLAlchemy's), without committing it. The tasks exist if and only if it commits.

        Raises InvalidArgument for what is not a Message, IdempotencyConflict, QueueFull and TransportError.
        """
        batch = [_checked(message) for message in messages]
        if self.hooks.before_enqueue:
            for message in batch:
                self.hooks.fire("before_enqueue", message)
        handles: list[Handle[Any]] = []
        for start in range(0, len(batch), PUBLISH_BATCH):
            handles += self._publish(batch[start : start + PUBLISH_BATCH], connection)
        return handles

    def _publish(self, messages: list[Message], connection: Any) -> list[Handle[Any]]:
        store, params = self.store, Publish(messages=messages)
        if connection is None:
            receipts = store.publish(params)
        elif isinstance(store, Transactional):
            receipts = store.publish_within(params, connection)
        else:
            raise InvalidArgument(
                f"connection is for stores in a SQL database; {store.name} has no transactions of yours"
            )
        return list(map(self._handle, messages, receipts))

    async def aenqueue_many(self, messages: Iterable[Message]) -> list[Handle[Any]]:
        """``enqueue_many`` for coroutines; the store is used in a thread."""
        import asyncio  # not at the top: it would cost every import of taskmq 35 ms

        return await asyncio.to_thread(self.enqueue_many, messages)

    # ── looking and operating ────────────────────────────────────────────────────────────────────────────────────────

    def get(self, task_id: str) -> TaskInfo:
        """The task of this id as it stands; raises TaskNotFound, InvalidArgument, TransportError."""
        return find_task(self.store, task_id)

    def tasks(
        self,
        *,
        queue: str | None = None,
        state: TaskState | str | Iterable[TaskState | str] = (),
        handler: str | None = None,
        partition: str | None = None,
        tag: str | None = None,
    ) -> TaskQuery:
        """The tasks for which every given condition holds, newest first; raises InvalidArgument."""
        return task_query(self.store, queue=queue, state=state, handler=handler, partition=partition, tag=tag)

    def queue(self, name: str) -> QueueControl:
        """One queue: pause, resume, stats, configure; raises InvalidArgument for a name that is none."""
        return QueueControl(self.store, check_name("queue", name))

    def partition(self, queue: str, code: str) -> PartitionControl:
        """One partition: info, pause, resume, release, skip_head, purge; raises InvalidArgument for a wrong code."""
        return PartitionControl(self.store, check_name("queue", queue), check_code(code))

    def why(self, task_id: str) -> str:
        """Why the task does not run now, in words: what it waits for, who has it, how it ended; raises TaskNotFound."""
        return why(self.store, find_task(self.store, task_id))

    def doctor(self) -> list[Finding]:
        """What is wrong with the store, its workers and this app's settings, errors first; empty: nothing was found.

        A store that cannot be opened is a finding, not an error.
        """
        from taskmq.doctor import examine  # for operators: who only publishes never pays for it

        return examine(self)

    def dead_letters(self, queue: str) -> DeadLetters:
        """The tasks of a queue that ended FAILED: list, replay, purge; raises InvalidArgument."""
        return DeadLetters(self.store, check_name("queue", queue))

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def worker(self, **options: Any) -> Worker:
        """A worker in this process, to be used as a context manager; for the options see ``Worker``."""
        from taskmq.worker.worker import Worker  # who only publishes never pays for it

        refuse_unknown("worker option", options, list(inspect.signature(Worker).parameters)[1:])
        return Worker(self, **options)

    def run_worker(self, **options: Any) -> int:
        """Run a worker in this process until a signal tells it to stop; returns the exit code, see ``Worker.run``."""
        return self.worker(**options).run()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> Store:
        with self._lock:
            if self._closed:
                raise TransportError("this app is closed: make another one")
            if self._store is None:
                store = open_store(self.config.url, namespace=self.config.namespace)
                try:
                    store.configure_queues(self.config.queues)
                except BaseException:
                    store.close()
                    raise
                self._store = store
            return self._store

    def _register(self, function: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        if not callable(function):
            raise InvalidArgument(f"app.task takes a function, not {short(function)}; a name is given as name=…")
        kind = AsyncTask if inspect.iscoroutinefunction(function) else Task
        task: Task[..., Any] = kind(self, function, options)
        with self._lock:
            other = self._handlers.setdefault(task.name, task)
        if other is not task:
            raise ConfigError(
                f"two handlers are named {task.name!r}, {_place(other.function)} and {_place(function)}: "
                "give one of them another name, @app.task(name=…)"
            )
        return task

    def _handle(self, message: Message, receipt: Receipt) -> Handle[Any]:
        task = self._handlers.get(message.handler)
        decode = None if task is None else task.decode_result
        return Handle(self.store, receipt.id, message.queue, duplicate=receipt.duplicate, decode=decode)


def _as_config(config: Config | str | None, settings: ConfigSettings) -> Config:
    refuse_unknown("setting", settings, ConfigSettings.__annotations__, ConfigError)
    if isinstance(config, Config):
        if settings:
            raise ConfigError(f"settings are given twice, as a Config and by name ({', '.join(settings)})")
        return config
    if config is not None:
        if "url" in settings:
            raise ConfigError("the url is given twice")
        settings = {"url": config, **settings}
    return Config(**settings)


def _checked(message: Any) -> Message:
    if not isinstance(message, Message):
        raise InvalidArgument(f"{short(message)} is not a message: give what task.message(…) returns")
    return message


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
