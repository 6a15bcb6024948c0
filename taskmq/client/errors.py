"""What the client raises. Each is the library's error of that name, with what the server said of it beside.

TaskMQError
├── InvalidArgument · PayloadTooLarge · IdempotencyConflict · LeaseLost ← AlreadySettled · ConfigError
├── Unauthenticated · PermissionDenied · NotFound · AlreadyExists · FailedPrecondition · RevisionConflict
├── RateLimited ← QuotaExceeded
└── TransportError ← TransportUnavailable (nothing happened) · OutcomeUnknown (it may have)
"""

from __future__ import annotations

from typing import Any

from taskmq import errors
from taskmq.errors import ConfigError, TaskMQError, TransportError


class Problem:
    """What the server said: ``code status field request_id retryable retry_after details``; ``retry_after`` in s."""

    code: str = ""
    status: int = 0
    field: str | None = None
    request_id: str | None = None
    retryable: bool = False
    retry_after: float | None = None
    details: dict[str, Any]


class InvalidArgument(Problem, errors.InvalidArgument):
    """A value is outside what the API allows; nothing was stored."""


class PayloadTooLarge(Problem, errors.PayloadTooLarge):
    """A payload, result, body or batch is larger than its limit."""

    def __init__(self, message: str) -> None:
        super().__init__(message, size=0, limit=0)


class IdempotencyConflict(Problem, errors.IdempotencyConflict):
    """The key belongs to a task with other content."""

    def __init__(self, message: str) -> None:
        super().__init__(message, key="", task_id="")


class LeaseLost(Problem, errors.LeaseLost):
    """The session and epoch do not hold the task."""


class AlreadySettled(LeaseLost):
    """The epoch was finished with another outcome."""


class Unauthenticated(Problem, TaskMQError):
    """The token is missing, unknown, expired or revoked."""


class PermissionDenied(Problem, TaskMQError):
    """The token has no scope for this."""


class NotFound(Problem, TaskMQError, LookupError):
    """There is no such resource, or it belongs to somebody else."""


class AlreadyExists(Problem, TaskMQError):
    """The name is taken by something else."""


class FailedPrecondition(Problem, TaskMQError):
    """The state forbids it."""


class RevisionConflict(Problem, TaskMQError):
    """Somebody else has changed it since."""


class RateLimited(Problem, TaskMQError):
    """Too many requests."""


class QuotaExceeded(RateLimited):
    """A quota is used up."""


class TransportUnavailable(Problem, errors.TransportUnavailable):
    """The server cannot be reached; nothing happened."""


class OutcomeUnknown(Problem, errors.OutcomeUnknown):
    """The answer was lost or is no answer of ours: it may or may not have happened."""


KINDS: dict[str, type[Any]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "NOT_FOUND": NotFound,
    "METHOD_NOT_ALLOWED": NotFound,
    "UNSUPPORTED_MEDIA_TYPE": InvalidArgument,
    "IDEMPOTENCY_CONFLICT": IdempotencyConflict,
    "ALREADY_EXISTS": AlreadyExists,
    "FAILED_PRECONDITION": FailedPrecondition,
    "PRECONDITION_FAILED": RevisionConflict,
    "LEASE_LOST": LeaseLost,
    "ALREADY_SETTLED": AlreadySettled,
    "PAYLOAD_TOO_LARGE": PayloadTooLarge,
    "RATE_LIMITED": RateLimited,
    "QUOTA_EXCEEDED": QuotaExceeded,
}


def of_error(content: Any, status: int = 0, retry_after: float | None = None) -> TaskMQError:
    """The exception for an ``error`` of the server; OutcomeUnknown for what is none."""
    if not isinstance(content, dict) or not isinstance(content.get("code"), str):
        return unknown(f"the answer with status {status} is none of taskmq's")
    code, details = content["code"], content.get("details") or {}
    kind = KINDS.get(code)
    if kind is None:
        certain = code == "UNAVAILABLE" and details.get("outcome") == "not_applied"
        kind = TransportUnavailable if certain else OutcomeUnknown
    error = kind(str(content.get("message", code)))
    error.code, error.status, error.details = code, status, details
    error.field, error.request_id = content.get("field"), content.get("request_id")
    error.retryable, error.retry_after = bool(content.get("retryable")), retry_after
    if isinstance(error, PayloadTooLarge):
        error.limit = details.get("max", 0)
    if isinstance(error, IdempotencyConflict):
        error.task_id = details.get("task_id", "")
    made: TaskMQError = error
    return made


def unknown(message: str) -> OutcomeUnknown:
    """The answer was lost."""
    error = OutcomeUnknown(message)
    error.details, error.retryable = {}, True
    return error


def unavailable(message: str) -> TransportUnavailable:
    """Nothing was sent."""
    error = TransportUnavailable(message)
    error.details, error.retryable = {}, True
    return error


__all__ = [
    "AlreadyExists",
    "AlreadySettled",
    "ConfigError",
    "FailedPrecondition",
    "IdempotencyConflict",
    "InvalidArgument",
    "LeaseLost",
    "NotFound",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PermissionDenied",
    "QuotaExceeded",
    "RateLimited",
    "RevisionConflict",
    "TaskMQError",
    "TransportError",
    "TransportUnavailable",
    "Unauthenticated",
]
