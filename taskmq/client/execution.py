"""One execution in a worker's hands: what the handler sees of it, and how its end becomes a message."""

from __future__ import annotations

import threading
import time
import traceback as tb
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from taskmq.signals import Dead, Defer, RetryLater
from taskmq.wire.strict import dumps

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
            self._say(news | _given(total=total, note=note))


def finish(task: Dispatched, run: Callable[[], Any]) -> dict[str, Any]:
    """Run a handler and put its end into a ``finish`` message, without its ref."""
    message: dict[str, Any] = {"type": "finish", "task_id": task.task_id, "epoch": task.epoch}
    try:
        result = run()
        dumps(result)
    except RetryLater as signal:
        return message | {"outcome": "retry", "delay_ms": signal.delay // 1000, **_block(signal)}
    except Defer as signal:
        return message | {"outcome": "defer", "delay_ms": signal.delay // 1000, **_block(signal)}
    except Dead as signal:
        return message | {"outcome": "dead", "reason": signal.reason.encode()[:256].decode("utf-8", "ignore")}
    except Exception as error:
        text = "".join(tb.format_exception(error))
        failure = {"type": type(error).__name__, "message": str(error)[:4000], "traceback": text[-12000:]}
        return message | {"outcome": "retry", "error": failure}
    return message | {"outcome": "success"} | ({} if result is None else {"result": result})


def _block(signal: Any) -> dict[str, Any]:
    return {"block_partition": True} if getattr(signal, "partition", False) else {}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


__all__ = ["Dead", "Defer", "Dispatched", "Execution", "RetryLater", "finish"]
