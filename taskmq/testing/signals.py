"""Events a test can wait for, so that it never has to sleep and hope."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds after which what has not happened is taken for never happening."""


class Record(Generic[T]):
    """What has happened, in order. Any thread adds; a test waits for the n-th."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._changed = threading.Condition()

    @property
    def items(self) -> list[T]:
        """Everything so far."""
        with self._changed:
            return list(self._items)

    def add(self, item: T) -> None:
        """It has happened."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def wait(self, count: int = 1) -> list[T]:
        """Wait until ``count`` things have happened, and return all so far; raises AssertionError if they do not."""
        return self.wait_until(lambda items: len(items) >= count, f"{count} events")

    def wait_until(self, true_of: Callable[[list[T]], object], what: str) -> list[T]:
        """Wait until something is true of the record, and return it; raises AssertionError if it never is."""
        with self._changed:
            if not self._changed.wait_for(lambda: true_of(self._items), PATIENCE):
                raise AssertionError(f"waited {PATIENCE:g} s in vain for {what}; so far: {self._items!r}")
            return list(self._items)


class Gate:
    """Where handlers wait until the test lets them pass. ``arrivals`` records who has come."""

    def __init__(self) -> None:
        self.arrivals: Record[object] = Record()
        self._open = threading.Event()

    def pass_through(self, who: object = None) -> None:
        """Wait until it is open; raises AssertionError if it never is."""
        self.arrivals.add(who)
        if not self._open.wait(PATIENCE):
            raise AssertionError(f"the gate was never opened for {who!r}")

    def open(self) -> None:
        """Let everybody pass, from now on."""
        self._open.set()


__all__ = ["PATIENCE", "Gate", "Record"]
