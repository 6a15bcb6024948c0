"""Children of the pool ``processes``: started, put into service, replaced in time, and started again when they fail.

Each place has at most one child in service. Its successor is started ahead and stands by; a child that retires first
ends what it has, then leaves, and its place goes to the successor in the same moment.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from taskmq.errors import ConfigError
from taskmq.worker import frames
from taskmq.worker.children import Child, Slot
from taskmq.worker.handoff import Desk
from taskmq.worker.outage import pause
from taskmq.worker.process import Process

if TYPE_CHECKING:
    from taskmq.worker.executor import Executor

log = logging.getLogger("taskmq.worker")

FIRST_PAUSE = 0.4
LONGEST_PAUSE = 30.0
"""Seconds before the next try after a child that failed to start."""
TRIES = 3
"""Children that must have failed to start, each place's among them, before a worker that never had one gives up."""

Listener = Callable[[Slot, Child, int], None]


class Nursery:
    """The places and their children. Used by the children thread alone, and read by others.

    ``on_line`` and ``on_death`` are told of a socket that has something, and of a process that has ended.
    ``complaint`` is what the last child that could not import the app has said.
    """

    on_line: Listener
    on_death: Listener

    def __init__(
        self,
        desk: Desk,
        executor: Executor,
        hello: Callable[[], frames.Hello],
        selector: selectors.BaseSelector,
        max_tasks: int | None,
        max_memory: int | None,
    ) -> None:
        self.slots = [Slot(place) for place in range(len(desk.running))]
        self.complaint = ""
        desk.places = 0  # until the first child is there
        self._desk = desk
        self._executor = executor
        self._make_hello = hello
        self._hello = b""
        self._selector = selector
        self._max_tasks = max_tasks
        self._max_memory = max_memory
        self._leavers: set[Child] = set()
        self._ever = False

    def open(self) -> None:
        """Settle what every child is told first."""
        self._hello = frames.frame(self._make_hello())

    def all(self) -> list[tuple[Slot, Child]]:
        """Every child that has not ended."""
        alive = [(slot, child) for slot in self.slots for child in (slot.child, slot.next) if child is not None]
        return alive + [(self.slots[0], child) for child in self._leavers]

    def lost(self, slot: Slot, child: Child, how: str) -> bool:
        """A child has ended; whether it was in service."""
        if child is slot.child:
            slot.child = None
            self._change_places(-1)
            self._promote(slot)
            return True
        if child is slot.next:
            slot.next = None
            if not child.ready:
                self._stillborn(slot, how)
        return False

    def _spawn(self, slot: Slot) -> None:
        try:
            child = Child(Process(self._hello))
        except OSError as error:  # no more processes or files to be had
            self._stillborn(slot, f"cannot be started ({error})")
            return
        slot.next = child
        self.watch(slot, child)
        if child.process.death is not None:
            self._selector.register(
                child.process.death, selectors.EVENT_READ, lambda events: self.on_death(slot, child, events)
            )

    def watch(self, slot: Slot, child: Child) -> None:
        """Listen to a child, and for room in its socket if something waits for that."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.process.stuck else 0)
        data = lambda events: self.on_line(slot, child, events)  # noqa: E731
        try:
            self._selector.modify(child.process.line, events, data)
        except KeyError:
            self._selector.register(child.process.line, events, data)

    def tend(self, slot: Slot, now: float) -> None:
        """Fill the place, and start the successor of a child whose time is coming."""
        child = slot.child
        if slot.next is None and now >= slot.not_before and (child is None or self._is_old(child)):
            self._spawn(slot)
        if child is None:
            self._promote(slot)
            return
        successor = slot.next is not None and slot.next.ready
        spent = self._max_tasks is not None and child.count >= self._max_tasks
        if spent or (successor and self._is_fat(child)):
            child.retiring = True
        if child.retiring and child.idle:
            self._retire(slot, child)

    def _is_old(self, child: Child) -> bool:
        half = None if self._max_tasks is None else self._max_tasks - max(1, self._max_tasks // 2)
        return (half is not None and child.count >= half) or self._is_fat(child)

    def _is_fat(self, child: Child) -> bool:
        return self._max_memory is not None and child.count > 0 and child.process.box.memory() > self._max_memory

    def _promote(self, slot: Slot) -> None:
        """Put the child that stands by into service."""
        if slot.child is None and slot.next is not None and slot.next.ready:
            slot.child, slot.next = slot.next, None
            self._change_places(1)

    def _retire(self, slot: Slot, child: Child) -> None:
        log.debug("child %d leaves after %d tasks, with %d MiB", child.process.pid, child.count, _mib(child))
        child.leaving = True
        child.process.send(frames.frame(frames.Leave()))
        self._leavers.add(child)
        slot.child = None
        self._change_places(-1)
        self._promote(slot)

    def _change_places(self, change: int) -> None:
        self._desk.places += change
        self._desk.wake()

    def ready(self, slot: Slot, child: Child, message: frames.Ready) -> None:
        """A child has come up."""
        child.ready = True
        slot.failures = 0
        took = monotonic() - child.process.started_at
        log.debug("child %d is ready after %.2f s", child.process.pid, took)
        if not self._ever:
            self._ever = True
            self._look_over(message)
        self._promote(slot)

    def _look_over(self, message: frames.Ready) -> None:
        """What the first child shows to be wrong with all of them."""
        missing = sorted(self._executor.known - set(message.handlers))
        if missing:
            log.error(
                "child processes do not know the handlers %s: they are not registered when the app's modules are "
                "imported; their tasks will wait",
                ", ".join(missing),
            )
        if self._max_memory is not None and message.memory > self._max_memory:
            log.warning(
                "child processes have %d MiB before their first task, more than max_memory_per_child (%d MiB): each "
                "will run one task, or a few",
                message.memory >> 20,
                self._max_memory >> 20,
            )

    def forget(self, child: Child) -> None:
        """Listen to this one no more."""
        self._leavers.discard(child)
        for source in (child.process.line, child.process.death):
            if source is not None:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(source)

    def _stillborn(self, slot: Slot, how: str) -> None:
        """A child never came up: try again, but not in a circle, and not for ever if none ever did."""
        slot.failures += 1
        failures = [one.failures for one in self.slots]
        if not self._ever and all(failures) and sum(failures) >= TRIES:
            raise ConfigError(f"no child process comes up: {self.complaint or f'each {how}'}")
        seconds = pause(slot.failures, FIRST_PAUSE, LONGEST_PAUSE)
        slot.not_before = monotonic() + seconds
        log.error("a child process never came up: it %s; next try in %.1f s", how, seconds)


def _mib(child: Child) -> int:
    return child.process.box.memory() >> 20


__all__ = ["Nursery"]
