"""The error codes of the API: their HTTP status, and whether the same request may succeed later."""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """What a code is."""

    status: int
    retryable: bool


CODES = {
    "INVALID_ARGUMENT": Code(400, False),
    "UNAUTHENTICATED": Code(401, False),
    "PERMISSION_DENIED": Code(403, False),
    "NOT_FOUND": Code(404, False),
    "METHOD_NOT_ALLOWED": Code(405, False),
    "IDEMPOTENCY_CONFLICT": Code(409, False),
    "ALREADY_EXISTS": Code(409, False),
    "FAILED_PRECONDITION": Code(409, False),
    "LEASE_LOST": Code(409, False),
    "ALREADY_SETTLED": Code(409, False),
    "PRECONDITION_FAILED": Code(412, False),
    "PAYLOAD_TOO_LARGE": Code(413, False),
    "UNSUPPORTED_MEDIA_TYPE": Code(415, False),
    "RATE_LIMITED": Code(429, True),
    "QUOTA_EXCEEDED": Code(429, True),
    "INTERNAL": Code(500, False),
    "UNAVAILABLE": Code(503, True),
    "TIMEOUT": Code(504, True),
}

MAX_MESSAGE = 1_048_576
"""Bytes of a WebSocket message, either way, and of a body but a batch's."""
MAX_BATCH_BODY = 8 * 1_048_576
MAX_BATCH = 1000
"""Items of a batch."""
MAX_PAYLOAD = 256 * 1024
"""Bytes of a payload or result, as the server is configured by default."""
MAX_CONTENT = 900 * 1024
"""Bytes of a payload or result, as it can be configured at most."""
SUBPROTOCOL = "taskmq.worker.v1"
