"""The waiter: one look for each alarm, and no spinning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from taskmq.errors import TransportUnavailable
from taskmq.testing.signals import Record
from taskmq.transport.base import Transport, Wait
from taskmq.worker.wait import Waiter, pause_before


class Store:
    """Only what a waiter needs: ``alarm`` decides how each wait ends."""

    def __init__(self) -> None:
        self.waits: Record[Wait] = Record()
        self.alarm = threading.Event()
        self.fails = False

    def wait(self, params: Wait) -> bool:
        self.waits.add(params)
        assert self.alarm.wait(10)
        if self.fails:
            raise TransportUnavailable("told to fail")
        return True

    def wake(self) -> None:
        self.alarm.set()


class Site:
    def __init__(self) -> None:
        self.store = Store()
        self.wakes: Record[int] = Record()
        self.waiter = Waiter(cast(Transport, self.store), ["q"], lambda: self.wakes.add(1))
        self.thread = threading.Thread(target=self.waiter.run)
        self.thread.start()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.waiter.stop()
    site.thread.join(10)
    assert not site.thread.is_alive()


def test_it_waits_only_when_armed_and_tells_once(site: Site) -> None:
    """Armed twice it waits once; when that wait ends it wakes the fetch loop, which hears of it once."""
    assert not site.waiter.heard()
    site.waiter.arm(fruitless=False)
    site.waiter.arm(fruitless=False)
    site.store.waits.wait()
    assert not site.waiter.heard()
    site.store.alarm.set()
    site.wakes.wait()
    assert site.waiter.heard()
    assert not site.waiter.heard()
    assert len(site.store.waits.items) == 1


def test_it_can_be_armed_again(site: Site) -> None:
    """Each arming brings one wait."""
    site.store.alarm.set()
    for number in range(1, 4):
        site.waiter.arm(fruitless=False)
        site.wakes.wait(number)
    assert len(site.store.waits.items) == 3


def test_a_failing_store_makes_the_fetch_loop_look(site: Site) -> None:
    """A wait that fails counts as an alarm: the fetch loop has its own patience with the store."""
    site.store.fails = True
    site.store.alarm.set()
    site.waiter.arm(fruitless=False)
    site.wakes.wait()
    assert site.waiter.heard()


def test_stop_cuts_a_wait_short(site: Site) -> None:
    """Stopping does not wait until the store's wait is over by itself."""
    site.waiter.arm(fruitless=False)
    site.store.waits.wait()
    site.waiter.stop()
    site.thread.join(10)
    assert not site.thread.is_alive()


def test_false_alarms_are_answered_by_growing_pauses() -> None:
    """A store whose wait returns at once although nothing can be claimed is not asked in a circle."""
    assert [pause_before(n) for n in range(6)] == [0.0, 0.0, 0.0, 0.001, 0.002, 0.004]
    assert pause_before(1000) == 0.25
