"""Ways of a transaction around the lock of a queue, and around exchanges with a server; an engine may know none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from taskmq.transport.base import Reserve
from taskmq.transport.sql.rows import CountRow, NewTask, PlainClaim, PlainSuccess, PlainTask, QueueRow

T = TypeVar("T")
Promise = Callable[[], T]
"""An answer that nothing more is decided on, to be taken once the transaction has ended: so it costs no exchange."""


class Unlocked(Protocol):
    """The part of a transaction that meets nobody: see publish.py."""

    def look_at_queues(self, names: Sequence[str], ids: Sequence[str]) -> tuple[list[QueueRow], set[str]]:
        """Read queues without locking them, and which of these task ids are known.

        Nobody deletes the queues before the end of the transaction.
        """
        ...

    def append_tasks(self, rows: Sequence[NewTask]) -> None:
        """Store new tasks that get their seq now, whatever is in the rows."""
        ...

    def add_deltas(self, rows: Sequence[CountRow]) -> None:
        """Add to the counts of queues that are not locked; meets nobody."""
        ...


class Short(Protocol):
    """Statements that decide by themselves: see short.py."""

    def publish_plain(self, rows: Sequence[PlainTask], now: int) -> Promise[bool]:
        """Store plain tasks, if publish.py says of all of their queues that they may be entered without the lock.

        False, and nothing stored, too, when a task is known or a handler is not.
        """
        ...

    def succeed_plain(
        self, rows: Sequence[PlainSuccess], queues: Collection[str], now: int, keep: int
    ) -> Promise[set[int]]:
        """Move those of these queues' tasks that are plain, running and of this epoch to the history; gives their seqs.

        The queues need not be locked.
        """
        ...

    def claim_plain(self, claim: Reserve, batch: int, now: int) -> Promise[PlainClaim | None]:
        """Claim from a queue that is locked, if it is plain and nothing is due in it; else nothing has changed."""
        ...
