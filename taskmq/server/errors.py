"""Errors of the API, and how those of the store become one."""

from __future__ import annotations

import math
from typing import Any

from taskmq.errors import (
    IdempotencyConflict,
    InvalidArgument,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    StoreFull,
    TaskMQError,
    TransportError,
    TransportUnavailable,
)
from taskmq.wire.codes import CODES
from taskmq.wire.strict import NotStrict


class ApiError(Exception):
    """What a request is refused with: a code of ``wire/codes.py``, words, and where the fault is."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """``retry_after``: seconds."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.details = dict(details or {})
        self.headers = dict(headers or {})
        self.status, self.retryable = CODES[code]
        if self.status in (429, 503):
            seconds = 1.0 if retry_after is None else retry_after
            self.headers["Retry-After"] = str(max(1, math.ceil(seconds)))
            self.details["retry_after_ms"] = max(0, math.ceil(seconds * 1000))

    def at(self, prefix: str) -> ApiError:
        """The same error of an item of a list."""
        if self.field is not None and not self.field.startswith(("header.", "query.")):
            self.field = f"{prefix}.{self.field}"
        return self

    def body(self, request_id: str | None = None) -> dict[str, Any]:
        """The inside of the envelope."""
        content: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.field is not None:
            content["field"] = self.field
        if request_id is not None:
            content["request_id"] = request_id
        content["retryable"] = self.retryable
        if self.details:
            content["details"] = self.details
        return content


def invalid(message: str, field: str | None = None) -> ApiError:
    """400."""
    return ApiError("INVALID_ARGUMENT", message, field=field)


def not_found(what: str = "there is no such resource") -> ApiError:
    """404."""
    return ApiError("NOT_FOUND", what)


def denied(message: str) -> ApiError:
    """403."""
    return ApiError("PERMISSION_DENIED", message)


def too_large(what: str, most: int, field: str | None = None) -> ApiError:
    """413."""
    return ApiError(
        "PAYLOAD_TOO_LARGE", f"{what} is larger than {most}", field=field, details={"limit": what, "max": most}
    )


def as_api_error(error: BaseException) -> ApiError:
    """An error of the store, or any other, as the API says it. What is unexpected is INTERNAL, without its words."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NotStrict):
        return invalid(str(error), error.field)
    if isinstance(error, IdempotencyConflict):
        return ApiError(
            "IDEMPOTENCY_CONFLICT",
            "the key belongs to a task with other content",
            details={"task_id": error.task_id},
        )
    if isinstance(error, PayloadTooLarge):
        return too_large("payload", error.limit, "payload")
    if isinstance(error, InvalidArgument):
        return invalid(str(error))
    if isinstance(error, QueueFull) and not error.max_queued:  # it was deleted while its name was still believed
        return not_found("there is no such queue")
    if isinstance(error, QueueFull):
        details = {"limit": "queue.max_queued", "max": error.max_queued, "current": error.queued}
        return ApiError("QUOTA_EXCEEDED", str(error), details=details)
    return _of_store(error)


def _of_store(error: BaseException) -> ApiError:
    if isinstance(error, (TransportUnavailable, StoreFull)):
        return ApiError("UNAVAILABLE", "the store is away: nothing happened", details={"outcome": "not_applied"})
    if isinstance(error, OutcomeUnknown):
        return ApiError("UNAVAILABLE", "the store's answer was lost", details={"outcome": "unknown"})
    if isinstance(error, TransportError):
        return ApiError("UNAVAILABLE", "the store failed", details={"outcome": "unknown"})
    if isinstance(error, TaskMQError):
        return ApiError("FAILED_PRECONDITION", str(error))
    if isinstance(error, TimeoutError):
        return ApiError("TIMEOUT", "the store did not answer in time; the outcome is unknown")
    return ApiError("INTERNAL", "a bug in the server; the outcome is unknown")
