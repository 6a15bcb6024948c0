"""Handlers as callers see them: a Task can be called here and now, or enqueued; a Ref knows only the handler's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, get_args

from taskmq import codec
from taskmq.codec import Envelope
from taskmq.config import Config
from taskmq.durations import Duration
from taskmq.errors import InvalidArgument, PayloadTooLarge
from taskmq.handle import Handle
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.names import check_name, short
from taskmq.options import PublishOptions, check_options, check_timeout, refuse_unknown
from taskmq.policy.retry import Retry
from taskmq.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")

Pool = Literal["threads", "solo", "asyncio", "processes"]

DEFAULT_QUEUE = "default"


class TaskOptions(TypedDict, total=False):
    """What ``@app.task`` takes.

    ``name``       the handler's name in the store; default: module.function
    ``queue``      default ``"default"`` · ``priority`` 0 to 9, default 0
    ``retry``      when a failed attempt is tried again; default ``Retry()``
    ``timeout``    bound of one attempt, at most 7 days
    ``expires``    a task not started so long after its publish never runs
    ``retention``  keep record and result so long after the end, 0 to 365 days
    ``pool``       the kind of worker pool it needs: ``"threads"``, ``"solo"``, ``"asyncio"`` or ``"processes"``;
                   another worker warns at its start
    """

    name: str
    queue: str
    priority: int
    retry: Retry
    timeout: Duration
    expires: Duration
    retention: Duration
    pool: Pool


class Publisher(Protocol):
    """What a task needs of the app."""

    @property
    def config(self) -> Config:
        """The app's settings."""
        ...

    def enqueue_many(self, messages: Iterable[Message], *, connection: Any = None) -> list[Handle[Any]]:
        """Publish messages, in this connection's transaction if one is given; a handle for each, in order."""
        ...


class BoundTask(Generic[P, R]):
    """A handler's name with the options that its tasks are published with: all that is needed to enqueue one."""

    def __init__(
        self,
        app: Publisher,
        name: str,
        signature: Callable[[], Signature],
        base: Mapping[str, Any],
        options: PublishOptions,
    ) -> None:
        self._app = app
        self._get_signature = signature
        self._base = base
        self._options = options
        self._fields = check_options(options).over(base)
        self.name = name

    @property
    def queue(self) -> str:
        """The queue its tasks go to."""
        return str(self._fields.message["queue"])

    @property
    def priority(self) -> int:
        """The priority its tasks get."""
        return int(self._fields.message.get("priority", 0))

    def using(self, **options: Unpack[PublishOptions]) -> BoundTask[P, R]:
        """The same with these options, see ``PublishOptions``; raises InvalidArgument for what is outside its range."""
        merged: PublishOptions = {**self._options, **options}
        return BoundTask(self._app, self.name, self._get_signature, self._base, merged)

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message:
        """A task for these arguments that is not published yet; give it to ``app.enqueue_many``.

        Raises InvalidArgument if the arguments do not fit the handler, PayloadTooLarge if they are too large.
        """
        wire_args, wire_kwargs = self._get_signature().encode(args, kwargs)
        body = codec.encode(Envelope(args=wire_args, kwargs=wire_kwargs, **self._fields.envelope))
        limit = self._app.config.max_payload
        if len(body) > limit:
            raise PayloadTooLarge(
                f"the arguments of {self.name} are {len(body):,} bytes; {limit:,} are allowed (max_payload): "
                "store the data elsewhere and send its address",
                size=len(body),
                limit=limit,
            )
        return Message(id=new_id(), handler=self.name, body=body, **self._fields.message)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Publish a task for these arguments and return its handle; when it returns, the task is in the store.

        Raises what ``message`` raises, IdempotencyConflict, QueueFull and TransportError.
        """
        return self._app.enqueue_many([self.message(*args, **kwargs)], connection=self._options.get("connection"))[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """``enqueue`` for coroutines; the store is used in a thread."""
        import asyncio  # not at the top: it would cost every import of taskmq 35 ms

        return await asyncio.to_thread(self.enqueue, *args, **kwargs)


Ref = BoundTask[..., Any]
"""A handler by name, where its code is not at hand: any JSON-like arguments are accepted."""


def ref(app: Publisher, name: str, options: PublishOptions) -> Ref:
    """The handler of this name; raises InvalidArgument for names and options outside the allowed."""
    open_signature = Signature(check_name("handler", name), None)
    return BoundTask(app, name, lambda: open_signature, {"queue": DEFAULT_QUEUE}, options)


class Task(BoundTask[P, R]):
    """A registered handler. Calling it runs the function here and now; ``enqueue`` publishes a task for a worker.

    ``function``  what ``@app.task`` was put on
    ``retry``     the retry policy · ``timeout`` microseconds of one attempt, or None · ``pool`` or None
    """

    is_coroutine = False

    def __init__(self, app: Publisher, function: Callable[P, Any], options: TaskOptions) -> None:
        refuse_unknown("option", options, TaskOptions.__annotations__)
        name = check_name("handler", options.get("name", default_name(function)))
        self.function = function
        self.retry = options.get("retry", Retry())
        if not isinstance(self.retry, Retry):
            raise InvalidArgument(f"retry {short(self.retry)} is not a Retry, e.g. Retry(max_attempts=5)")
        timeout = options.get("timeout")
        self.timeout = None if timeout is None else check_timeout(timeout)
        self.pool = options.get("pool")
        if self.pool is not None and self.pool not in get_args(Pool):
            raise InvalidArgument(f"pool {short(self.pool)} is none of {', '.join(get_args(Pool))}")
        super().__init__(app, name, lambda: self.signature, self._base_fields(options), {})
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, without any queue."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]  # an AsyncTask's R is the awaited type

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @cached_property
    def signature(self) -> Signature:
        """The compiled signature. Made when first needed: annotations may name what is defined further down."""
        return Signature(self.name, self.function)

    def decode_result(self, value: Any) -> Any:
        """A result as it is stored, decoded from JSON, in the type of the return annotation."""
        return self.signature.decode_result(value)

    def _base_fields(self, options: TaskOptions) -> Mapping[str, Any]:
        published: PublishOptions = {"queue": options.get("queue", DEFAULT_QUEUE)}
        for name in ("priority", "expires", "retention"):
            if name in options:
                published[name] = options[name]
        return {**check_options(published).message, "max_attempts": self.retry.max_attempts}


class AsyncTask(Task[P, R]):
    """The task of an ``async def`` handler: a plain call gives the coroutine, the handle gives what it returns."""

    is_coroutine = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """The coroutine of the function, to be awaited here and now, without any queue."""
        return super().__call__(*args, **kwargs)  # type: ignore[return-value]


def default_name(function: Callable[..., Any]) -> str:
    """module.function; a script that is run gets the name it would have when imported, as the worker does."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module}.{getattr(function, '__name__', type(function).__name__)}"
