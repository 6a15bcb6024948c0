"""What a handler can know about its own task: ``current()`` inside a handler."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from taskmq.codec import Envelope
from taskmq.errors import InvalidArgument, TaskMQError
from taskmq.message import Delivery
from taskmq.state import Progress

if TYPE_CHECKING:
    # A LoggerAdapter can be subscripted for type checkers only.
    _Adapter = logging.LoggerAdapter[logging.Logger]

_log = logging.getLogger("taskmq.task")

Report = Callable[[Delivery, Progress], None]
"""Where a handler's progress goes."""

MAX_NOTE = 256
"""Characters of a note."""


class Context:
    """The running task, as its handler sees it.

    ``cancelled``  the task is to stop: it was cancelled, it has run longer than its timeout, or the worker is shutting
                   down and its grace is over. A handler in a thread has to look at it; nothing can stop a thread. In
                   the pool ``processes`` it is the last moment before the process is ended.
    """

    # Made for every task, so it copies nothing: the properties read the delivery and the envelope.
    __slots__ = ("_delivery", "_envelope", "_log", "_report", "cancelled")

    def __init__(self, delivery: Delivery, envelope: Envelope, report: Report | None = None) -> None:
        self._delivery = delivery
        self._envelope = envelope
        self._log: _Adapter | None = None
        self._report = report
        self.cancelled = False

    @property
    def task_id(self) -> str:
        """The task's id, the same in every attempt."""
        return self._delivery.id

    @property
    def attempt(self) -> int:
        """Which execution this is; the first is 1."""
        return self._delivery.attempt

    @property
    def epoch(self) -> int:
        """The fencing token: greater at every claim. Give it to other systems to refuse writes of a stale run."""
        return self._delivery.epoch

    @property
    def priority(self) -> int:
        """0 to 9, larger is more urgent."""
        return self._delivery.priority

    @property
    def queue(self) -> str:
        """The name of the queue it came from."""
        return self._delivery.queue

    @property
    def handler(self) -> str:
        """The handler's name."""
        return self._delivery.handler

    @property
    def partition(self) -> str | None:
        """The partition's code; an ordered one starts with ``!``."""
        return self._delivery.partition

    @property
    def deadline(self) -> datetime | None:
        """When it must be finished, by the store's clock, as an aware UTC datetime."""
        return _utc(self._delivery.deadline_at)

    @property
    def lease_until(self) -> datetime | None:
        """When the lease ends unless the worker renews it, by the store's clock, as an aware UTC datetime."""
        return _utc(self._delivery.lease_until)

    @property
    def headers(self) -> dict[str, str]:
        """The headers it was published with."""
        return self._envelope.headers

    @property
    def tags(self) -> Sequence[str]:
        """The tags it was published with."""
        return self._envelope.tags

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the task is: ``done`` of ``total`` (None: unknown), with a note of up to 256 characters.

        Cheap enough for every turn of a loop: only the latest word is kept, and about once a second it goes to the
        store, where ``task show`` and the handle's ``info`` find it. What is said in a task's last second may not get
        there; its end does.

        Raises InvalidArgument for numbers that are negative, not finite or no numbers, and for a note that is longer
        or has no UTF-8 form.
        """
        said = Progress(_amount("done", done), None if total is None else _amount("total", total), _note(note))
        if self._report is not None:
            self._report(self._delivery, said)

    @property
    def log(self) -> _Adapter:
        """A logger whose records carry ``task_id``, ``handler``, ``queue`` and ``attempt``."""
        if self._log is None:
            fields: dict[str, Any] = {
                "task_id": self.task_id,
                "handler": self.handler,
                "queue": self.queue,
                "attempt": self.attempt,
            }
            self._log = logging.LoggerAdapter(_log, fields)
        return self._log


_current: ContextVar[Context] = ContextVar("taskmq.context")


def current() -> Context:
    """The context of the task that runs here.

    It follows the handler into coroutines and ``asyncio.to_thread``, not into threads that the handler starts itself.
    Raises TaskMQError outside a handler.
    """
    try:
        return _current.get()
    except LookupError:
        raise TaskMQError(
            "current() has an answer only inside a handler that a worker runs; a plain call of the function has no "
            "task. In a thread of your own, pass the context to it"
        ) from None


def enter(context: Context) -> Token[Context]:
    """Make this the current context; give the token to ``leave``."""
    return _current.set(context)


def leave(token: Token[Context]) -> None:
    """Undo ``enter``."""
    _current.reset(token)


def _amount(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidArgument(f"{name} {value!r} of a progress is not a finite number from 0 upwards")
    return float(value)


def _note(note: str | None) -> str | None:
    if note is None:
        return None
    if not isinstance(note, str) or len(note) > MAX_NOTE:
        what = f"{len(note):,} characters long" if isinstance(note, str) else repr(note)
        raise InvalidArgument(f"the note of a progress is text of at most {MAX_NOTE} characters, not {what}")
    try:
        return note.encode().decode()  # a plain str, whatever subclass it came as
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the note of a progress {note!a} has no UTF-8 form: {error.reason}") from None


def _utc(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, tz=UTC)
