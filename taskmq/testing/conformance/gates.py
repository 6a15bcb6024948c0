"""Gates of a queue: paused and max_running; and how settings come and stay (§8, library.md)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.queue import QueueConfig
from taskmq.testing.conformance.kit import LEASE, Kit, names, needs


def pause_stops_claims(kit: Kit) -> None:
    """Nothing of a paused queue is claimed; resumed, it goes on in order (§8)."""
    kit.publish("A", "B")
    kit.store.pause_queue("q", True)
    assert kit.claim(9) == []
    kit.publish("C")
    kit.store.pause_queue("q", False)
    assert kit.claim(9) == ["A", "B", "C"]


def pause_stops_no_other_queue(kit: Kit) -> None:
    """A gate does not stop other queues from using the workers (§8)."""
    kit.publish("A", queue="a", priority=9)
    kit.publish("B", queue="b")
    kit.store.pause_queue("a", True)
    assert kit.claim(9, "a", "b") == ["B"]


def pause_touches_nothing_that_is_claimed(kit: Kit) -> None:
    """What is claimed when a queue is paused is renewed and settled as ever; nothing consumes an attempt (§8)."""
    kit.publish("A", "B", "C")
    kit.claim(2)
    kit.store.pause_queue("q", True)
    assert kit.renew("A").lease_until is not None
    kit.ack("A")
    kit.hand_back("B")
    assert kit.claim(9) == []
    kit.store.pause_queue("q", False)
    assert kit.claim(9) == ["B", "C"]
    assert [kit.delivery(name).attempt for name in "BC"] == [1, 1]


def pause_may_come_before_the_first_task(kit: Kit) -> None:
    """A queue that nobody has used yet can be paused (§8)."""
    kit.store.pause_queue("q", True)
    kit.publish("A")
    assert kit.claim() == []


def pause_by_configuration_is_a_pause(kit: Kit) -> None:
    """``paused=True`` in the configuration stops claims until somebody resumes (library.md)."""
    kit.configure(paused=True)
    kit.publish("A")
    assert (kit.claim(), kit.stats().config.paused) == ([], True)
    kit.store.pause_queue("q", False)
    assert (kit.claim(), kit.stats().config.paused) == (["A"], False)


def pause_is_shown(kit: Kit) -> None:
    """An operator's pause is seen in the queue's settings (base.py, QueueStats)."""
    kit.configure(weight=3)
    kit.store.pause_queue("q", True)
    assert kit.stats().config == QueueConfig(weight=3, paused=True)


# ── max_running ──


def max_running_is_never_exceeded(kit: Kit) -> None:
    """A queue with max_running=N has at most N tasks in hands, over all batches and workers (§8)."""
    kit.configure(max_running=3)
    kit.publish(*names("T", 10))
    assert kit.claim(2, worker="one") == ["T1", "T2"]
    assert kit.claim(9, worker="two") == ["T3"]
    assert kit.claim(9) == []
    kit.ack("T2")
    assert kit.claim(9) == ["T4"]
    assert kit.stats().running == 3


def max_running_counts_what_is_claimed(kit: Kit) -> None:
    """What is claimed counts as running, started or not (§8)."""
    kit.configure(max_running=2)
    kit.publish("A", "B", "C")
    kit.claim(2)
    kit.start("A")
    assert kit.claim() == []


def max_running_is_freed_by_every_end(kit: Kit) -> None:
    """Ack, retry, defer, hand-back, death and a lost lease each free a slot, once (§8)."""
    kit.configure(max_running=1)
    kit.publish("A", "B", max_attempts=99)
    ends: list[Callable[[], None]] = [
        *(lambda: kit.retry("A"), lambda: kit.defer("A", 0), lambda: kit.hand_back("A"), kit.lose_leases),
    ]
    for end in ends:
        assert kit.claim(9) == ["A"]
        assert kit.claim(9) == []
        end()
    assert kit.claim(9) == ["A"]
    kit.die("A")
    assert kit.claim(9) == ["B"]
    kit.ack("B")
    kit.publish("C", "D")
    assert kit.claim(9) == ["C"]


def max_running_stops_no_other_queue(kit: Kit) -> None:
    """A full queue leaves the places of a batch to others (§8)."""
    kit.configure("a", max_running=1)
    kit.publish(*names("a", 3), queue="a", priority=9)
    kit.publish(*names("b", 3), queue="b")
    assert kit.claim(4, "a", "b") == ["a1", "b1", "b2", "b3"]


def max_running_counts_followers(kit: Kit) -> None:
    """The tasks of a run count, too (§8)."""
    kit.configure(max_running=2)
    kit.publish(*names("T", 4), partition="!x")
    assert kit.claim(4) == ["T1", "T2"]
    kit.ack("T1", "T2")
    assert kit.claim(4) == ["T3", "T4"]


def max_running_may_change_while_tasks_run(kit: Kit) -> None:
    """A limit that is set or lowered counts what is in hands already (§8)."""
    kit.publish(*names("T", 6))
    assert kit.claim(3) == ["T1", "T2", "T3"]
    kit.configure(max_running=2)
    assert kit.claim(9) == []
    kit.ack("T1")
    assert kit.claim(9) == []
    kit.ack("T2")
    assert kit.claim(9) == ["T4"]
    kit.configure(max_running=3)
    assert kit.claim(9) == ["T5"]
    kit.configure()
    assert kit.claim(9) == ["T6"]


def max_running_survives_lost_leases(kit: Kit) -> None:
    """A dead worker's tasks free their slots when their leases end, so the next claim has room (§8)."""
    kit.configure(max_running=2)
    kit.publish(*names("T", 4))
    kit.claim(2)
    kit.advance(LEASE)
    assert kit.claim(9) == ["T1", "T2"]
    assert kit.claim(9) == []


# ── settings ──


def configure_seeds_a_queue_once(kit: Kit) -> None:
    """Config seeds a queue's settings once; later starts only report drift (library.md)."""
    wanted = QueueConfig(weight=3, max_running=7, on_dead="hold", lease=5.0)
    assert kit.store.configure_queues({"q": wanted}) == {}
    assert kit.stats().config == wanted
    drift = kit.store.configure_queues({"q": QueueConfig(weight=4, max_running=7, on_dead="hold", lease=5.0)})
    assert drift == {"q": ["weight"]}
    assert kit.stats().config == wanted


def configure_tells_every_setting_that_differs(kit: Kit) -> None:
    """Drift names each setting in which a queue differs, gates included (library.md)."""
    kit.configure(weight=2, max_running=5, max_queued=10, rate="5/s")
    wanted = QueueConfig(order="aging", aging_step=7.0, max_queued=11, rate="6/s", on_dead="hold", lease=4.0)
    drift = kit.store.configure_queues({"q": wanted})
    assert set(drift["q"]) == {"weight", "order", "aging_step", "max_running", "max_queued", "rate", "on_dead", "lease"}


def configure_overwrites_on_demand(kit: Kit) -> None:
    """``apply_config=True`` overwrites (library.md)."""
    kit.store.configure_queues({"q": QueueConfig(weight=3)})
    assert kit.store.configure_queues({"q": QueueConfig(order="aging", aging_step=5.0)}, overwrite=True) == {}
    assert kit.stats().config == QueueConfig(order="aging", aging_step=5.0)


def configure_respects_an_operator_s_pause(kit: Kit) -> None:
    """An operator's pause survives a deploy, and is reported as drift (library.md)."""
    kit.store.configure_queues({"q": QueueConfig()})
    kit.store.pause_queue("q", True)
    assert kit.store.configure_queues({"q": QueueConfig()}) == {"q": ["paused"]}
    assert kit.stats().config.paused


def configure_seeds_a_queue_that_is_in_use(kit: Kit) -> None:
    """A queue that has tasks but was never configured takes the first settings it is given (library.md)."""
    kit.publish("A")
    assert kit.store.configure_queues({"q": QueueConfig(max_running=1)}) == {}
    assert kit.stats().config.max_running == 1


@needs("shared")
def max_running_is_exact_across_stores(kit: Kit) -> None:
    """The limit is in the store: two processes together do not exceed it (§8)."""
    other = kit.open()
    kit.configure(max_running=3)
    kit.publish(*names("T", 10))
    assert kit.claim(2, store=kit.store) == ["T1", "T2"]
    assert kit.claim(9, store=other) == ["T3"]
    kit.ack("T1")
    assert kit.claim(9, store=other) == ["T4"]


def change_of_one_setting_leaves_the_others(kit: Kit) -> None:
    """An operator's pause, and every other setting, survives a change of one (base.py, change_queue)."""
    kit.configure(weight=3, max_running=2)
    kit.store.pause_queue("q", True)
    assert kit.store.change_queue("q", {"weight": 5}).paused
    (stats,) = kit.store.stats(["q"])
    assert (stats.config.weight, stats.config.max_running, stats.config.paused) == (5, 2, True)
