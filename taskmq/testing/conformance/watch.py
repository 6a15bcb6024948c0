"""Watching a task's end (base.py, watch), and the store's clock and health (base.py, now, checkup)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from taskmq.errors import TransportError
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit, needs
from taskmq.transport.base import Store

PATIENCE = 10.0
"""Upper bound in seconds for what should happen at once."""
SOON = PATIENCE / 2
SHORT = 0.02


def _ended_by(kit: Kit, name: str, change: Callable[[], object], store: Store | None = None) -> None:
    """Somebody watches a task; the change must let him go on, soon and with the answer that it has ended."""
    entered = threading.Event()

    def watch() -> bool:
        entered.set()
        return (store or kit.store).watch(kit.id(name), PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(watch)
        entered.wait(PATIENCE)
        begun = time.monotonic()
        change()
        assert answer.result(2 * PATIENCE), f"the end of {name} was not noticed"
        assert time.monotonic() - begun < SOON


def watch_returns_at_once_for_what_has_ended(kit: Kit) -> None:
    """An ended task, however it ended, and one that nobody knows need no waiting (base.py, watch)."""
    kit.publish("done", "dead", "cancelled", "gone")
    kit.claim(4)
    kit.ack("done")
    kit.die("dead")
    kit.cancel("cancelled")
    kit.retry("cancelled")
    kit.ack("gone")
    kit.store.purge([kit.id("gone")])
    kit.message("unknown")
    for name in ("done", "dead", "cancelled", "gone", "unknown"):
        begun = time.monotonic()
        assert kit.store.watch(kit.id(name), PATIENCE)
        assert time.monotonic() - begun < SOON


def watch_gives_up_after_its_timeout(kit: Kit) -> None:
    """A task that waits, is due later, runs or retries has not ended: False after the timeout (base.py, watch)."""
    kit.publish("A", delay=60)
    assert not kit.store.watch(kit.id("A"), SHORT)
    kit.publish("B")
    assert not kit.store.watch(kit.id("B"), 0)
    kit.claim()
    assert not kit.store.watch(kit.id("B"), SHORT)
    kit.retry("B", delay=60)
    assert not kit.store.watch(kit.id("B"), SHORT)


def watch_is_ended_by_an_ack(kit: Kit) -> None:
    """Who watches a task learns at once that it succeeded (base.py, watch)."""
    kit.publish("A")
    kit.claim()
    _ended_by(kit, "A", lambda: kit.ack("A", result=1))
    assert kit.info("A").result == 1


def watch_is_ended_by_a_death(kit: Kit) -> None:
    """Who watches a task learns at once that it is dead (base.py, watch)."""
    kit.publish("A")
    kit.claim()
    _ended_by(kit, "A", lambda: kit.die("A"))


def watch_is_ended_by_a_lost_lease(kit: Kit) -> None:
    """Who watches a task learns that its last worker died (base.py, watch; §2)."""
    kit.publish("A", max_attempts=1)
    kit.claim()
    _ended_by(kit, "A", kit.lose_leases)
    assert kit.state("A") is TaskState.FAILED


def watch_is_ended_by_a_skip(kit: Kit) -> None:
    """Who watches the head of a partition learns at once that an operator skipped it (base.py, watch, skip_head)."""
    kit.publish("A", partition="!x")
    _ended_by(kit, "A", lambda: kit.store.skip_head("q", "!x"))


def watch_is_ended_when_nothing_is_kept(kit: Kit) -> None:
    """A task without retention is gone with its end, and that is its end (base.py, watch)."""
    kit.publish("A", retention=0)
    kit.claim()
    _ended_by(kit, "A", lambda: kit.ack("A"))
    assert kit.look("A") is None


def watch_goes_on_over_retries(kit: Kit) -> None:
    """A failed attempt is no end: the watch goes on until there is one (base.py, watch)."""
    kit.publish("A", max_attempts=9)

    def fail_then_succeed() -> None:
        for _ in range(3):
            kit.claim()
            kit.retry("A")
        kit.claim()
        kit.ack("A")

    _ended_by(kit, "A", fail_then_succeed)
    assert kit.state("A") is TaskState.SUCCEEDED


def watch_of_a_replayed_task_waits_again(kit: Kit) -> None:
    """A dead letter that was replayed lives again (base.py, watch; §2)."""
    kit.publish("A")
    kit.claim()
    kit.die("A")
    kit.replay("A")
    assert not kit.store.watch(kit.id("A"), SHORT)
    kit.claim()
    _ended_by(kit, "A", lambda: kit.ack("A"))


def watch_lets_each_watcher_have_his_own_task(kit: Kit) -> None:
    """Many may watch at once; each learns of the end of his own task (base.py, watch)."""
    names = [f"T{number}" for number in range(6)]
    kit.publish(*names)
    kit.claim(6)
    with ThreadPoolExecutor(12) as pool:
        watches = {name: [pool.submit(kit.store.watch, kit.id(name), PATIENCE) for _ in range(2)] for name in names}
        for name in reversed(names):
            assert not any(watch.done() for watch in watches[name])
            kit.ack(name)
            assert all(watch.result(2 * PATIENCE) for watch in watches[name])


@needs("shared")
def watch_sees_what_another_store_does(kit: Kit) -> None:
    """The end of a task is noticed whichever process brought it about (base.py, watch)."""
    other = kit.open()
    kit.publish("A")
    kit.claim()
    _ended_by(kit, "A", lambda: kit.ack("A"), store=other)


def close_ends_a_watch(kit: Kit) -> None:
    """Closing a store lets nobody watch for ever (base.py, close)."""
    kit.publish("A")

    def watch() -> bool:
        try:
            return kit.store.watch(kit.id("A"), PATIENCE)
        except TransportError:
            return False

    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        answer = pool.submit(watch)
        kit.store.close()
        assert not answer.result(2 * PATIENCE)
    assert time.monotonic() - begun < SOON


def now_is_the_store_s_clock(kit: Kit) -> None:
    """``now`` is the clock by which tasks fall due and leases end (base.py, now; §9)."""
    assert kit.store.now() == kit.now
    kit.advance(12.345678)
    assert kit.store.now() == kit.now
    kit.publish("A")
    assert kit.info("A").created_at == kit.store.now()


def checkup_says_what_to_do(kit: Kit) -> None:
    """Each finding names its check, how bad it is, what is wrong and what to do about it (base.py, Finding)."""
    kit.publish("A", partition="!x")
    kit.claim()
    for finding in kit.store.checkup():
        assert finding.level in ("error", "warning")
        assert all(text.strip() for text in (finding.check, finding.text, finding.fix)), finding


def checkup_changes_nothing(kit: Kit) -> None:
    """To look is harmless: tasks, leases and counts stay as they are (base.py, checkup)."""
    kit.publish("A", "B", partition="!x")
    kit.claim()
    before = (kit.store.stats(), kit.info("A"), kit.info("B"))
    kit.store.checkup()
    assert (kit.store.stats(), kit.info("A"), kit.info("B")) == before


def watch_is_ended_by_a_cancel(kit: Kit) -> None:
    """Who watches a waiting task learns at once that it is cancelled (base.py, watch)."""
    kit.publish("A")
    _ended_by(kit, "A", lambda: kit.cancel("A"))


def watch_is_ended_by_an_expiry(kit: Kit) -> None:
    """Who watches a task learns at once that it has expired (base.py, watch; §2)."""
    kit.publish("A", expires=5)

    def expire() -> None:
        kit.advance(5)
        kit.claim()

    _ended_by(kit, "A", expire)
    assert kit.state("A") is TaskState.EXPIRED


def watch_is_ended_by_housekeeping(kit: Kit) -> None:
    """Who watches a task learns that housekeeping found it expired (base.py, watch; §2)."""
    kit.publish("A", expires=5)

    def expire() -> None:
        kit.advance(5)
        kit.maintain()

    _ended_by(kit, "A", expire)
    assert kit.state("A") is TaskState.EXPIRED


def watch_is_ended_by_a_flush(kit: Kit) -> None:
    """A task that was flushed is gone (base.py, watch, flush)."""
    kit.publish("A")
    _ended_by(kit, "A", kit.store.flush)
