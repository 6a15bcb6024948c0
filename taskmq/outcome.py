"""What a settle is given: how one delivery ended. One class an outcome; the store does exactly what it says.

Reasons, errors and tracebacks may come from any exception in the world, and a settle that a store refuses would leave
the task running: so what is no text everywhere – a lone surrogate, a NUL on PostgreSQL – becomes a question mark.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import force_setattr


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """Success. ``result`` is JSON text in UTF-8, or None for no result."""

    result: bytes | None = None


class Retry(msgspec.Struct, frozen=True, tag="retry"):
    """Run again after ``delay`` microseconds, in place. Consumes an attempt.

    ``partition``: block a parallel partition as a whole until then (an ordered one always is).
    """

    delay: int
    error: str | None = None
    traceback: str | None = None
    partition: bool = False

    def __post_init__(self) -> None:
        _make_storable(self, "error", "traceback")


class Defer(msgspec.Struct, frozen=True, tag="defer"):
    """The handler asks to be run later. Like Retry, but no attempt is consumed."""

    delay: int
    partition: bool = False


class Yield(msgspec.Struct, frozen=True, tag="yield"):
    """Hand a never started delivery back to its place; it is available at once and nothing is consumed.

    In a run, everything behind it in the run goes back with it.
    """


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """Move to the dead letters: no further attempt."""

    reason: str
    error: str | None = None
    traceback: str | None = None

    def __post_init__(self) -> None:
        _make_storable(self, "reason", "error", "traceback")


Outcome = Ack | Retry | Defer | Yield | Dead


def _make_storable(outcome: Retry | Dead, *fields: str) -> None:
    for field in fields:
        text = getattr(outcome, field)
        if text is not None:
            force_setattr(outcome, field, storable(text))


def storable(text: str) -> str:
    """Text that every store takes."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")
