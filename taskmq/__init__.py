"""taskmq: one task queue with priority, fairness and order, the same on every store.

    from taskmq import App

    app = App("sqlite:///shop.db")

    @app.task
    def send(to: str, n: int = 1) -> str: ...

    handle = send.enqueue("a@example.org", n=2)

A worker runs it: ``taskmq worker module:app``, or ``with app.worker(): …`` inside this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.app import App
from taskmq.config import Config
from taskmq.context import Context, current
from taskmq.errors import (
    ConfigError,
    IdempotencyConflict,
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    ResultTimeout,
    StoreFull,
    TaskFailed,
    TaskMQError,
    TaskNotFound,
    TransportError,
    TransportUnavailable,
    UnknownHandler,
)
from taskmq.handle import Handle
from taskmq.policy.retry import Retry
from taskmq.queue import Limit, Partition, QueueConfig, Rate
from taskmq.signals import Dead, Defer, RetryLater
from taskmq.state import TaskInfo, TaskState
from taskmq.task import Task

if TYPE_CHECKING:
    from taskmq.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "App",
    "Config",
    "ConfigError",
    "Context",
    "Dead",
    "Defer",
    "Handle",
    "IdempotencyConflict",
    "InvalidArgument",
    "LeaseLost",
    "Limit",
    "OutcomeUnknown",
    "Partition",
    "PayloadTooLarge",
    "QueueConfig",
    "QueueFull",
    "Rate",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "StoreFull",
    "Task",
    "TaskFailed",
    "TaskInfo",
    "TaskMQError",
    "TaskNotFound",
    "TaskState",
    "TransportError",
    "TransportUnavailable",
    "UnknownHandler",
    "Worker",
    "__version__",
    "current",
]


def __getattr__(name: str) -> Any:
    if name == "Worker":  # imported when it is asked for: who only publishes never pays for it
        from taskmq.worker.worker import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
