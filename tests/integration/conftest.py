"""Apps on a memory store that can fail on command and tells what went through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskmq import App
from taskmq.clock import Clock
from taskmq.testing.clock import FakeClock
from taskmq.testing.faulty import Faulty
from taskmq.transport.registry import open_store


class Site:
    """An app, the faulty store below it, and the clock of that store."""

    def __init__(self, clock: Clock | None, **settings: Any) -> None:
        self.faulty = Faulty(open_store("memory://", clock=clock))
        self.app = App("memory://", **settings)
        self.faulty.configure_queues(self.app.config.queues)
        self.app._store = self.faulty.store


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test turns it."""
    return FakeClock()


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    """Makes apps; closes them afterwards."""
    made: list[Site] = []

    def make(clock: Clock | None = None, **settings: Any) -> Site:
        made.append(Site(clock, **settings))
        return made[-1]

    yield make
    for one in made:
        one.app.close()
