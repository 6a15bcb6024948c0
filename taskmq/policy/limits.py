"""Concurrency limits by key (model.md §8). Essay: parking.

A claim that meets a task whose key is full cannot just pass it by: behind a million such tasks every claim would walk a
million. So the task is *parked*: it leaves its line and waits with its key, in a line of (queue, n) – n because each
task has a limit of its own. When a slot frees, each such line is *owed* the return of its first task; the next claim of
its queue puts it back in its place, and the claim rule decides as ever. So in each queue there stand in line at least
as many of the best tasks of a key as it has free slots, and that is all a claim needs.

* Owed, not returned at once: only a claim of that queue holds what is needed to change its lines, and a queue that
  nobody claims from must not fill its lines for nothing. Never more than n are owed, nor more than slots are free.
* What was returned may not start after all: it is cancelled, its partition is paused, blocked or full, or something
  more urgent came before it in its ordered partition. Then another one is owed, or the slot would stay idle.
* A task that would enter the line of a full key is parked at once: a million published behind a full key cost claims
  nothing. (Not in an ordered partition: there it stands behind its head.)
* An ordered partition waits with its parked head; a parked task of a parallel one lets the next go.

Stores keep the parked tasks themselves, in the order of their lines; here is only the arithmetic.

Rejected: *return all when a slot frees* (a million), *a line per key in each queue* (a claim would merge as many lines
as there are keys), *pass by and remember nothing* (every claim walks).
"""

from __future__ import annotations

from typing import Generic, TypeVar

Q = TypeVar("Q")
"""How the store names a queue."""

LOOK = 100
"""How far into the line of a partition that stopped one looks for tasks with a limit."""
PARK = 100
"""Most tasks that one claim parks."""


class ParkedLine:
    """The parked tasks of one key, queue and n: how many, and how many of them are owed their return."""

    __slots__ = ("owed", "parked")

    def __init__(self, parked: int = 0, owed: int = 0) -> None:
        self.parked = parked
        self.owed = owed


class LimitedKey(Generic[Q]):
    """One key: its tasks in workers' hands, and its lines of parked ones by (queue, n)."""

    __slots__ = ("lines", "running")

    def __init__(self, running: int = 0) -> None:
        self.running = running
        self.lines: dict[tuple[Q, int], ParkedLine] = {}

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
        for queue, n in self.lines:
            self.missed(queue, n)

    def missed(self, queue: Q, n: int) -> None:
        """A task that stood in line for a free slot cannot take it: another one may."""
        line = self.lines.get((queue, n))
        if line is not None and line.owed < n and self.free(n) > 0:
            line.owed += 1

    def park(self, queue: Q, n: int) -> None:
        """A task waits for a slot."""
        self.lines.setdefault((queue, n), ParkedLine()).parked += 1

    def unpark(self, queue: Q, n: int) -> None:
        """One waits no more: it returns, or it has ended."""
        line = self.lines[queue, n]
        line.parked -= 1
        if not line.parked:
            del self.lines[queue, n]

    def owed(self, queue: Q, n: int) -> int:
        """How many tasks are to return to this queue now."""
        line = self.lines.get((queue, n))
        if line is None:
            return 0
        line.owed = max(0, min(line.owed, self.free(n)))
        return min(line.owed, line.parked)

    def returned(self, queue: Q, n: int) -> None:
        """One that was owed stands in line and can start."""
        line = self.lines.get((queue, n))
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
