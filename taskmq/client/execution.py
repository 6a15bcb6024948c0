"""One execution in a worker's hands: what the handler sees of it, and how its end becomes a message."""

from __future__ import annotations

import threading
import time
import traceback as tb
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from taskmq.outcome import storable
from taskmq.signals import Dead, Defer, RetryLater
from taskmq.wire.strict import NotStrict, check_depth, dumps, loads

MAX_RESULT = 900 * 1024
"""Bytes of a result that fit into a message of any server; what it is set to take may be less."""
MAX_NOTE = 256

Token = tuple[str, int]


class RunPlace(msgspec.Struct, frozen=True):
    """Its place in a run of an ordered partition."""

    id: str
    pos: int
    len: int


class Dispatched(msgspec.Struct, kw_only=True):
    """A task as it was dispatched."""

    task_id: str
    epoch: int
    queue_id: str
    queue: str
    handler: str
    attempt: int
    max_attempts: int
    handler_version: str = "v1"
    payload_version: str = "v1"
    payload: Any = None
    priority: int = 0
    available_at: datetime | None = None
    deadline: datetime | None = None
    timeout_ms: int | None = None
    partition: str | None = None
    run: RunPlace | None = None
    resource_key: str | None = None
    traceparent: str | None = None
    reserve_ms: int = 10_000


class Execution:
    """What a handler gets. ``cancelled`` and ``lease_lost`` become true while it runs; look at them now and then."""

    def __init__(self, task: Dispatched, say: Callable[[dict[str, Any]], object]) -> None:
        self.task = task
        self._lost = False
        self._cancelled = threading.Event()
        self._say = say
        self._progressed = 0.0
        self.until = float("inf")
        """Monotonic time at which the lease is over, if nothing renews it."""

    @property
    def payload(self) -> Any:
        """The task's payload."""
        return self.task.payload

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: somebody asked for it, its time is over, or its lease is."""
        return self._cancelled.is_set() or self.lease_lost

    @property
    def lease_lost(self) -> bool:
        """Whether somebody else may be running it by now: what it does to the world may be done twice."""
        return self._lost or time.monotonic() > self.until

    def cancel(self, *, lost: bool = False) -> None:
        """Tell the handler to stop."""
        self._lost = self._lost or lost
        self._cancelled.set()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far it is; at most one message a second leaves."""
        now = time.monotonic()
        if now - self._progressed >= 1.0:
            self._progressed = now
            news = {"type": "progress", "task_id": self.task.task_id, "epoch": self.task.epoch, "done": done}
            self._say(news | _given(total=total, note=None if note is None else note[:MAX_NOTE]))


def finish(task: Dispatched, run: Callable[[], Any]) -> dict[str, Any]:
    """Run a handler and put its end, whatever it is, into a ``finish`` message that a server can read.

    A thread that died here, or a message that is refused unread, would leave the task running for ever.
    """
    message: dict[str, Any] = {"type": "finish", "task_id": task.task_id, "epoch": task.epoch}
    try:
        data = dumps(run())
    except RetryLater as signal:
        return message | {"outcome": "retry", **_delay(signal)}
    except Defer as signal:
        return message | {"outcome": "defer", **_delay(signal)}
    except Dead as signal:
        return message | {"outcome": "dead", "reason": storable(signal.reason).encode()[:256].decode("utf-8", "ignore")}
    except BaseException as error:  # also sys.exit(): it ends the handler, not the worker
        return message | {"outcome": "retry", "error": _failure(error)}
    try:
        result = _readable(data)
    except NotStrict as error:
        return message | unkept(str(error))
    return message | {"outcome": "success"} | ({} if result is None else {"result": result})


def unkept(why: str) -> dict[str, Any]:
    """The end of an execution whose result the server does not take: running it again would not change that."""
    return {"outcome": "dead", "error": {"type": "InvalidResult", "message": why, "traceback": ""}}


def _readable(data: bytes) -> Any:
    """The result as a server reads it; raises NotStrict where it would not."""
    if len(data) > MAX_RESULT:
        raise NotStrict(f"the result has {len(data)} bytes, more than {MAX_RESULT}")
    result = loads(data)
    check_depth(result, "result")
    return result


def _failure(error: BaseException) -> dict[str, str]:
    try:
        text = str(error)
    except Exception:
        text = "an error without words: its __str__ raises"
    trace = "".join(tb.format_exception(error))
    return {"type": type(error).__name__, "message": storable(text[:4000]), "traceback": storable(trace[-12000:])}


def _delay(signal: RetryLater | Defer) -> dict[str, Any]:
    blocks = {"block_partition": True} if getattr(signal, "partition", False) else {}
    return {"delay_ms": signal.delay // 1000, **blocks}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


__all__ = ["Dead", "Defer", "Dispatched", "Execution", "RetryLater", "finish", "unkept"]
