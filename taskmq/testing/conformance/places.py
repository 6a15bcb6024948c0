"""Where a scenario's stores are, and what time it is there. The lower half of Kit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from taskmq.errors import TransportError
from taskmq.testing.clock import FakeClock
from taskmq.transport.base import Maintain, Maintained, Store

Factory = Callable[[FakeClock, Path], Store]

SECOND = 1_000_000
LEASE = 30.0
MANY_ROUNDS = 1000


def us(seconds: float) -> int:
    """Seconds as the store counts them."""
    return round(seconds * SECOND)


class Places:
    """One store in one place, and whatever else is opened. Empties and closes it all at the end."""

    def __init__(self, factory: Factory, place: Path) -> None:
        self.clock = FakeClock()
        self.place = place
        self._factory = factory
        self._opened: list[Store] = []
        self._places: set[Path] = set()
        self.store = self.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave_nothing_behind()
        except TransportError:
            if error is None:
                raise
        finally:
            for store in self._opened:
                store.close()

    def _leave_nothing_behind(self) -> None:
        capabilities = self.store.capabilities
        if capabilities.shared or capabilities.durable:
            for place in self._places:
                store = self._factory(self.clock, place)
                store.flush()
                store.close()

    def open(self) -> Store:
        """One more store on the same data, with the same clock."""
        return self._open(self.place)

    def elsewhere(self) -> Store:
        """A store in a place of its own."""
        place = self.place.with_name(f"{self.place.name}{len(self._places)}")
        place.mkdir()
        return self._open(place)

    def _open(self, place: Path) -> Store:
        self._places.add(place)
        store = self._factory(self.clock, place)
        self._opened.append(store)
        return store

    # ── time ──

    @property
    def now(self) -> int:
        """The store's time."""
        return self.clock.now()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    def lose_leases(self) -> None:
        """Let so much time pass that leases of the usual length end, and have the store notice."""
        self.advance(LEASE + 1)
        self.maintain()

    def maintain(self) -> Maintained:
        """Housekeeping until nothing is left to do; returns the sums."""
        promoted = reaped = deleted = 0
        for _ in range(MANY_ROUNDS):
            done = self.store.maintain(Maintain())
            promoted, reaped, deleted = promoted + done.promoted, reaped + done.reaped, deleted + done.deleted
            if not done.more:
                return Maintained(promoted=promoted, reaped=reaped, deleted=deleted)
        raise AssertionError("maintain never ends")
