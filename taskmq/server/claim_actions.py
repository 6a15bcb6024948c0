"""What the claim pool answers and what it wants done; see ``claim_pool.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request stands in line, under this id."""

    id: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request was not taken: ``SHUTTING_DOWN``, ``CLAIM_PENDING`` or ``NODE_CLAIMS``."""

    code: str


@dataclass(frozen=True, slots=True)
class Start:
    """Run the statement of this request now, then call ``complete`` or ``fail``."""

    id: int


@dataclass(frozen=True, slots=True)
class Empty:
    """Tell the worker that there is nothing for it; the request is over."""

    id: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Send the claimed tasks to the worker; the request is over."""

    id: int
    count: int


@dataclass(frozen=True, slots=True)
class Release:
    """Hand the claimed tasks back: the connection that asked for them is gone."""

    id: int
    count: int


@dataclass(frozen=True, slots=True)
class Error:
    """Tell the worker that its claim failed; the request is over."""

    id: int
    code: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Tell the worker that the node drains; the request is over."""

    id: int


Action = Start | Empty | Answer | Release | Error | Cancelled
