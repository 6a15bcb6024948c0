"""Concurrency limits by key (model.md §8). Essay: parking.

A claim that meets a task whose key is full cannot just pass it by: behind a million such tasks every claim would walk a
million. So the task is *parked*: it leaves its line and waits with its key, in a line of (handler, n) – n because each
task has a limit of its own, the handler because a claim may not be able to run another one's. When a slot frees, each
such line is *owed* the return of one task; the next claim of its queue puts it back in its place, and the claim rule
decides as ever. So for each handler there stand in line at least as many of the best tasks of a key as it has free
slots, and that is all a claim needs.

* Owed, not returned at once: only a claim of that queue holds what is needed to change its lines, and a queue that
  nobody claims from must not fill its lines for nothing. Never more than n are owed, nor more than slots are free.
* What was returned may not start after all: it is cancelled, its partition is paused, blocked or full, or something
  more urgent came before it in its ordered partition. Then another one is owed, or the slot would stay idle.
* A task that would enter the line of a full key is parked at once: a million published behind a full key cost claims
  nothing. (Not in an ordered partition: there it stands behind its head.)
* An ordered partition waits with its parked head, unless something more urgent comes before it; a parked task of a
  parallel one lets the next go.

Who returns first
    Partitions that share a key take turns at its slots as they do at workers (turns.py): otherwise the tenant that
    published most before the others would have every slot of the key until it is done. Each task gets a *tag* when it
    is parked – its partition's last one plus a turn, or, if none of it is parked here, the line's join counter – and
    the highest priority, then the smallest tag returns. So no partition's tag ever changes while it waits. A tag
    belongs to a partition's turn and not to the task that brought it: what returns is that partition's first task.
    In an aging queue waiting is the fairness, and there are no tags.

Stores keep the parked tasks themselves, in the order of their lines; here is only the arithmetic.

Rejected: *return all when a slot frees* (a million), *a line per key in each queue* (a claim would merge as many lines
as there are keys), *pass by and remember nothing* (every claim walks), *first parked, first returned* (no turns).
"""

from __future__ import annotations

from typing import Generic, TypeVar

from taskmq.policy.turns import U

L = TypeVar("L")
"""How the store names a handler of a queue."""

LOOK = 100
"""How far into the line of a partition that stopped one looks for tasks with a limit."""
PARK = 100
"""Most tasks that one claim parks."""


class ParkedLine:
    """The parked tasks of one key, handler and n: how many, how many of them are owed their return, and their turns.

    ``v`` and ``j``: virtual time and join counter, as those of a queue.
    """

    __slots__ = ("j", "owed", "parked", "v")

    def __init__(self, parked: int = 0, owed: int = 0, v: int = 0, j: int = 0) -> None:
        self.parked = parked
        self.owed = owed
        self.v = v
        self.j = j

    def tag(self, last: int | None, weight: int) -> int:
        """The tag of a task that is parked now; ``last``: the greatest of its partition's in this line, if any."""
        if last is not None:
            return last + round(U / weight)
        self.j = max(self.j + 1, self.v)
        return self.j


class LimitedKey(Generic[L]):
    """One key: its tasks in workers' hands, and its lines of parked ones by (handler, n)."""

    __slots__ = ("lines", "running")

    def __init__(self, running: int = 0) -> None:
        self.running = running
        self.lines: dict[tuple[L, int], ParkedLine] = {}

    def free(self, n: int) -> int:
        """Slots for a task whose limit is n; 0 or less: it may not start."""
        return n - self.running

    def empty(self) -> bool:
        """Whether nothing keeps it."""
        return not self.running and not self.lines

    def start(self) -> None:
        """A slot is taken."""
        self.running += 1

    def release(self) -> None:
        """A slot is given back; every line that can use it is owed a return."""
        self.running -= 1
        for handler, n in self.lines:
            self.missed(handler, n)

    def missed(self, handler: L, n: int) -> None:
        """A task that stood in line for a free slot cannot take it: another one may."""
        line = self.lines.get((handler, n))
        if line is not None and line.owed < n and self.free(n) > 0:
            line.owed += 1

    def park(self, handler: L, n: int) -> ParkedLine:
        """A task waits for a slot, in this line."""
        line = self.lines.setdefault((handler, n), ParkedLine())
        line.parked += 1
        return line

    def unpark(self, handler: L, n: int, tag: int) -> None:
        """One waits no more: it returns, or it has ended."""
        line = self.lines[handler, n]
        line.parked -= 1
        line.v = max(line.v, tag)
        if not line.parked:
            del self.lines[handler, n]

    def owed(self, handler: L, n: int) -> int:
        """How many tasks are to return to this line's queue now."""
        line = self.lines.get((handler, n))
        if line is None:
            return 0
        line.owed = max(0, min(line.owed, self.free(n)))
        return min(line.owed, line.parked)

    def returned(self, handler: L, n: int) -> None:
        """One that was owed stands in line and can start."""
        line = self.lines.get((handler, n))
        if line is not None:
            line.owed -= 1


class Parking:
    """How many tasks one claim has parked, over all its queues; ``over``: it would have been more than it may."""

    def __init__(self) -> None:
        self._parked = 0

    @property
    def over(self) -> bool:
        """Whether the claim stopped early."""
        return self._parked > PARK

    def may_park(self) -> bool:
        """Whether one more may be parked; counts it."""
        self._parked += 1
        return self._parked <= PARK
