"""A client of a taskmq server: submit tasks, look at them, and work them off."""

from __future__ import annotations

from taskmq.client.aio import AsyncClient
from taskmq.client.aio_worker import AsyncWorker
from taskmq.client.client import Client
from taskmq.client.errors import (
    AlreadyExists,
    AlreadySettled,
    ConfigError,
    FailedPrecondition,
    IdempotencyConflict,
    InvalidArgument,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    RevisionConflict,
    TaskMQError,
    TransportError,
    TransportUnavailable,
    Unauthenticated,
)
from taskmq.client.execution import Dead, Defer, Execution, RetryLater
from taskmq.client.objects import Queue, Task
from taskmq.client.worker import Worker
from taskmq.wire.credentials import Credentials

__all__ = [
    "AlreadyExists",
    "AlreadySettled",
    "AsyncClient",
    "AsyncWorker",
    "Client",
    "ConfigError",
    "Credentials",
    "Dead",
    "Defer",
    "Execution",
    "FailedPrecondition",
    "IdempotencyConflict",
    "InvalidArgument",
    "LeaseLost",
    "NotFound",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PermissionDenied",
    "Queue",
    "QuotaExceeded",
    "RateLimited",
    "RetryLater",
    "RevisionConflict",
    "Task",
    "TaskMQError",
    "TransportError",
    "TransportUnavailable",
    "Unauthenticated",
    "Worker",
]
