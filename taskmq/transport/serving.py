"""What a server needs of a store beyond ``Transport`` and ``Inspect``: two leases, repeatable steps, exact lookups.

A library's worker holds a lease from the claim on. Behind a server a claim is a *reservation* (``Reserve`` with
``reservation=True``): short, blameless when it ends, and no right to run. ``Begin`` turns it into a lease and counts as
the start. Every step names the session that holds the task, beside the epoch: the session is the ``worker`` of the
claim, so a step may come over any connection, from any process.

Times and durations are microseconds, as everywhere at the seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from taskmq.outcome import Ack, Dead, Defer, Retry
from taskmq.state import Progress, TaskInfo, TaskState
from taskmq.transport.base import Find, Found, Store

# ── steps of a delivery ──


@dataclass(frozen=True, slots=True)
class Begin:
    """The worker is about to run it. ``timeout``: its lease never reaches beyond so long after this start."""

    task_id: str
    epoch: int
    lease: int
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How its execution ended. ``digest`` tells a repetition from another outcome; it is kept with the history.

    A Retry of what has no attempt left ends it.
    """

    task_id: str
    epoch: int
    outcome: Ack | Retry | Defer | Dead
    digest: str


@dataclass(frozen=True, slots=True)
class HandBack:
    """It was never started: back in its place, unblamed."""

    task_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Forfeit:
    """The worker says that it does not run it: its lease counts as over now."""

    task_id: str
    epoch: int


Step = Begin | End | HandBack | Forfeit


@dataclass(frozen=True, slots=True)
class Begun:
    """It may run, as this attempt. ``repeated``: it had been started in this epoch already."""

    attempt: int
    lease_until: int
    now: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """It is out of the session's hands, in this state. ``released``: the rest of its run, handed back with it."""

    state: TaskState
    available_at: int | None = None
    released: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was changed.

    ``lost``         this session and epoch do not hold it
    ``not_started``  it is reserved only
    ``not_next``     an earlier task of its run is not settled
    """

    why: Literal["lost", "not_started", "not_next"]


StepResult = Begun | Ended | Refusal

# ── renewing ──


@dataclass(frozen=True, slots=True)
class Keep:
    """One delivery that the session still holds."""

    task_id: str
    epoch: int
    lease: int
    timeout: int | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """``lease_until`` None: lost. ``over``: its ``timeout`` or deadline is reached; the lease was not renewed."""

    lease_until: int | None
    started: bool = False
    cancel: bool = False
    over: Literal["timeout", "deadline"] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A task in a session's hands."""

    task_id: str
    epoch: int
    queue: str
    started: bool
    attempt: int
    lease_until: int


# ── looking ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(Find):
    """``Find`` with more conditions. ``queues``: any of these; ``oldest_first`` turns the order."""

    queues: Sequence[str] | None = None
    priority: int | None = None
    limit_key: str | None = None
    created_from: int | None = None
    created_to: int | None = None
    oldest_first: bool = False


@dataclass(frozen=True, slots=True)
class Keyed:
    """Who has an idempotency key."""

    task_id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revival:
    """An ended task to be queued again. ``expected``: only if it was replayed so often before."""

    task_id: str
    available_at: int | None = None
    expected: int | None = None


class Serving(Protocol):
    """The third protocol of a store; see the module's docstring. Every verb may raise TransportError."""

    def steps(self, session: str, steps: Sequence[Step]) -> list[StepResult]:
        """Do these steps of one session, in this order, in one transaction; a refusal stops none of the others."""
        ...

    def steps_of_all(self, calls: Sequence[tuple[str, Sequence[Step]]]) -> list[list[StepResult]]:
        """The same for several (session, steps), in one transaction for all of them."""
        ...

    def keep(self, session: str, items: Sequence[Keep], *, reserve: int, longest: int) -> list[Kept]:
        """Renew what a session holds: what is started by its lease, what is reserved by ``reserve``.

        A reservation never reaches beyond ``longest`` after its claim, a lease never beyond the task's deadline.
        """
        ...

    def held(self, session: str) -> list[Held]:
        """What a session holds."""
        ...

    def withdraw(self, task_ids: Sequence[str]) -> list[TaskState | None]:
        """Cancel what waits or is reserved, ask what runs to stop; the state each is in now (None: not there)."""
        ...

    def revive(self, wish: Revival) -> TaskInfo | None:
        """Queue an ended task again with a new budget; None, and nothing done, where its state forbids it."""
        ...

    def search(self, params: Search) -> Found:
        """One page of tasks."""
        ...

    def close_queue(self, queue: str) -> None:
        """Take nothing more into this queue until it is configured again: a publish raises QueueFull, of nothing."""
        ...

    def keyed(self, queue: str, keys: Sequence[str]) -> dict[str, Keyed]:
        """Those of these idempotency keys that are taken."""
        ...


class ServingStore(Store, Serving, Protocol):
    """A store that a server can stand on."""


__all__ = [
    "Begin",
    "Begun",
    "End",
    "Ended",
    "Forfeit",
    "HandBack",
    "Held",
    "Keep",
    "Kept",
    "Keyed",
    "Refusal",
    "Revival",
    "Search",
    "Serving",
    "ServingStore",
    "Step",
    "StepResult",
]
