"""What a worker and its child processes say to each other: frames of four bytes of length and one msgpack message.

Everything a handler needs travels, and nothing of the store: no URL, no connection, no store's token of a delivery.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Layout
from typing import Any

import msgspec

from taskmq.message import Delivery
from taskmq.outcome import Outcome
from taskmq.worker.home import Home

LENGTH = Layout("<I")


# ── to the child ──


class Hello(msgspec.Struct, array_like=True, tag=0):
    """The first frame: what to import, and how loud to log. ``path`` and ``argv`` are those of ``sys``."""

    path: list[str]
    argv: list[str]
    home: Home
    log_level: int
    worker: str


class Work(msgspec.Struct, array_like=True, gc=False):
    """One delivery. ``number`` grows with each that the worker sends; ``usable_until`` is monotonic, as in a Job."""

    number: int
    usable_until: float
    id: str
    queue: str
    handler: str
    body: Any  # bytes, or text from stores that keep text
    priority: int
    attempt: int
    max_attempts: int
    epoch: int
    lease_until: int
    lease: int
    partition: str | None
    expires_at: int | None
    deadline_at: int | None
    created_at: int


class Batch(msgspec.Struct, array_like=True, tag=1):
    """Run these, in this order."""

    items: list[Work]


class TakeBack(msgspec.Struct, array_like=True, tag=2):
    """Return all you have not started."""


class Cancel(msgspec.Struct, array_like=True, tag=3):
    """Tell this one to stop, if it runs."""

    number: int


class Flush(msgspec.Struct, array_like=True, tag=4):
    """Send the outcomes you have."""


class Leave(msgspec.Struct, array_like=True, tag=5):
    """End, when all you have has been run."""


ToChild = Hello | Batch | TakeBack | Cancel | Flush | Leave


# ── to the worker ──


class Ready(msgspec.Struct, array_like=True, tag=0):
    """The app is imported, with these handlers."""

    handlers: list[str]
    memory: int


class Failed(msgspec.Struct, array_like=True, tag=1):
    """The app cannot be imported."""

    error: str
    traceback: str


class Ended(msgspec.Struct, array_like=True, tag=2):
    """How one ended. Times are monotonic, which all processes of a machine share; 0.0 when it was not started."""

    number: int
    started: float
    ended: float
    outcome: Outcome


class Returned(msgspec.Struct, array_like=True, tag=3):
    """The answer to TakeBack: these were not started and never will be here, in the order they had been sent."""

    numbers: list[int]


ToWorker = Ready | Failed | Ended | Returned

_encoder = msgspec.msgpack.Encoder()
to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


def frame(message: ToChild | ToWorker) -> bytes:
    """The message as it goes over the socket."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)) + data


class Frames:
    """Cuts what comes out of a socket into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The messages that are complete now, encoded."""
        whole = self._rest + data if self._rest else data
        view, at, end = memoryview(whole), 0, len(whole)
        while end - at >= 4:
            (length,) = LENGTH.unpack_from(whole, at)
            if end - at - 4 < length:
                break
            yield view[at + 4 : at + 4 + length]
            at += 4 + length
        self._rest = whole[at:]


def work(number: int, usable_until: float, delivery: Delivery) -> Work:
    """A delivery as it goes to a child."""
    return Work(
        number,
        usable_until,
        delivery.id,
        delivery.queue,
        delivery.handler,
        delivery.body,
        delivery.priority,
        delivery.attempt,
        delivery.max_attempts,
        delivery.epoch,
        delivery.lease_until,
        delivery.lease,
        delivery.partition,
        delivery.expires_at,
        delivery.deadline_at,
        delivery.created_at,
    )


def delivery(work: Work) -> Delivery:
    """A delivery as the child's handlers see it."""
    return Delivery(
        id=work.id,
        queue=work.queue,
        handler=work.handler,
        body=work.body,
        priority=work.priority,
        attempt=work.attempt,
        max_attempts=work.max_attempts,
        epoch=work.epoch,
        lease_until=work.lease_until,
        lease=work.lease,
        partition=work.partition,
        expires_at=work.expires_at,
        deadline_at=work.deadline_at,
        created_at=work.created_at,
    )


__all__ = [
    "Batch",
    "Cancel",
    "Ended",
    "Failed",
    "Flush",
    "Frames",
    "Hello",
    "Leave",
    "Ready",
    "Returned",
    "TakeBack",
    "Work",
    "delivery",
    "frame",
    "to_child",
    "to_worker",
    "work",
]
