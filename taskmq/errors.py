"""Every error that taskmq raises, in one tree.

TaskMQError
├── ConfigError                 an option, URL or file that cannot be used as it is
├── InvalidArgument             (also ValueError) a value outside what the model allows
│   └── PayloadTooLarge         arguments, result or headers above their limit
├── IdempotencyConflict         same key, different content: nothing was stored
├── QueueFull                   the queue's ``max_queued`` is reached: nothing was stored
├── UnknownHandler              no handler of that name is registered here
├── TaskNotFound                no task of that id (never published, or its retention is over)
├── LeaseLost                   the delivery's lease ended and the task moved on: the settle did nothing
├── TaskFailed                  ``result()`` of a task that ended without success
├── ResultTimeout               (also TimeoutError) ``result(timeout=…)`` ran out; the task goes on
└── TransportError              the store answered with an error
    ├── TransportUnavailable    the store cannot be reached or is locked: nothing happened, try again
    ├── OutcomeUnknown          the answer was lost: it may or may not have happened
    └── StoreFull               no room: disk, memory or quota; nothing was stored

``retryable`` says whether the same call may succeed later without any change by the caller.
"""

from __future__ import annotations


class TaskMQError(Exception):
    """Root of all errors of taskmq."""

    retryable = False


class ConfigError(TaskMQError):
    """A setting, URL or file cannot be used; the message names it and the way out."""


class InvalidArgument(TaskMQError, ValueError):
    """A value is outside what the model allows; nothing was stored."""


class PayloadTooLarge(InvalidArgument):
    """Arguments, result or headers are larger than their limit.

    Attributes: ``size`` and ``limit``, both in bytes.
    """

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class IdempotencyConflict(TaskMQError):
    """The idempotency key is taken by a task with different content; nothing was stored.

    Attributes: ``key``, and ``task_id`` of the task that holds it.
    """

    def __init__(self, message: str, *, key: str, task_id: str) -> None:
        super().__init__(message)
        self.key = key
        self.task_id = task_id


class QueueFull(TaskMQError):
    """The queue holds ``max_queued`` tasks; nothing was stored.

    ``queue``, ``max_queued`` and ``queued``: which one, what it takes, how many tasks wait in it or are due later.
    """

    retryable = True

    def __init__(self, message: str, *, queue: str, max_queued: int, queued: int) -> None:
        super().__init__(message)
        self.queue = queue
        self.max_queued = max_queued
        self.queued = queued


class UnknownHandler(TaskMQError):
    """No handler of that name is registered in this app."""


class TaskNotFound(TaskMQError, LookupError):
    """No task of that id: it was never published, or its retention is over."""


class LeaseLost(TaskMQError):
    """The lease of this delivery is over and the task has moved on; the call changed nothing."""


class TaskFailed(TaskMQError):
    """The task ended without success.

    Attributes: ``task_id``, ``state`` (FAILED, CANCELLED or EXPIRED), ``reason`` and ``error``.
    """

    def __init__(self, message: str, *, task_id: str, state: str, reason: str | None, error: str | None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state
        self.reason = reason
        self.error = error


class ResultTimeout(TaskMQError, TimeoutError):
    """The task did not end within the given time; it goes on."""

    retryable = True


class TransportError(TaskMQError):
    """The store refused or failed."""


class TransportUnavailable(TransportError):
    """The store cannot be reached now; nothing happened."""

    retryable = True


class OutcomeUnknown(TransportError):
    """The store's answer was lost: the call may or may not have taken effect."""

    retryable = True


class StoreFull(TransportError):
    """The store has no room left; nothing was stored."""

    retryable = True
