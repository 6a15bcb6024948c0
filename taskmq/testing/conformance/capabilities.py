"""Claims that name what they can run: the (handler, version) pairs, and whether they support keys (§8)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.outcome import Ack
from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit, names
from taskmq.transport.base import Reserve, Settle, Settlement

G = [("g", "")]
H = [("h", "")]
BOTH = [("g", ""), ("h", "")]


def claims_take_only_the_handlers_they_name(kit: Kit) -> None:
    """A claim that names handlers gets tasks of these; the others wait, untouched (§8)."""
    kit.publish("g1", "g2", handler="g")
    kit.publish("h1", "h2", handler="h")
    assert kit.claim(9, handlers=H) == ["h1", "h2"]
    assert (kit.state("g1"), kit.info("g1").epoch) == (TaskState.QUEUED, 0)
    assert kit.claim(9, handlers=G) == ["g1", "g2"]


def claims_that_name_nothing_take_what_comes(kit: Kit) -> None:
    """Without capabilities a claim takes every handler and version, in order (§8)."""
    kit.publish("A", handler="g")
    kit.publish("B", handler="h", version="2")
    kit.publish("C", handler="i", limit=Limit("k", 1))
    assert kit.claim(9) == ["A", "B", "C"]


def claims_that_can_run_nothing_get_nothing(kit: Kit) -> None:
    """No handlers, or only such that nobody has published for, bring nothing, and no promise of more (§8)."""
    kit.publish("A", handler="g")
    for handlers in ([], [("never seen", "")], [("G", "")]):
        got = kit.reserve(9, handlers=handlers)
        assert (got.deliveries, got.more) == ([], False)
    assert kit.claim(9) == ["A"]


def claims_compare_versions_exactly(kit: Kit) -> None:
    """A pair is exact: another version of the handler, or none, is another thing (§8)."""
    for version in ("", "1", "2"):
        kit.publish(f"v{version}", handler="h", version=version)
    assert kit.claim(9, handlers=[("h", "2")]) == ["v2"]
    assert kit.claim(9, handlers=[("h", "3")]) == []
    assert kit.claim(9, handlers=H) == ["v"]
    assert kit.claim(9, handlers=[("h", "2"), ("h", "1")]) == ["v1"]


def claims_without_keys_take_no_task_with_a_limit(kit: Kit) -> None:
    """A claim that does not support keys passes over tasks with a limit; one that does takes them (§8)."""
    kit.publish("A", limit=Limit("k", 5), priority=9)
    kit.publish("B")
    assert kit.claim(9, keys=False) == ["B"]
    assert kit.limit("k") == (0, 0)
    assert kit.claim(9, keys=True) == ["A"]


def claims_without_keys_park_nobody(kit: Kit) -> None:
    """What is hidden is not looked at: a claim without keys parks no task of a full key (§8)."""
    kit.publish("A", "B", limit=Limit("k", 1))
    assert kit.claim() == ["A"]
    assert kit.claim(9, keys=False) == []
    assert kit.limit("k") == (1, 0)


def claims_keep_the_order_over_handlers(kit: Kit) -> None:
    """Tasks of several handlers that a claim can run come in the order of the queue, not by handler (§8, §4)."""
    for number in range(12):
        kit.publish(f"{number}", handler="ghi"[number % 3], priority=number % 2)
    wanted = [str(n) for odd in (1, 0) for n in range(12) if n % 2 == odd and n % 3 != 2]
    assert kit.claim(12, handlers=BOTH) == wanted
    kit.store.flush()
    kit.configure(order="aging")
    for number in range(6):
        kit.publish(f"{number}", handler="ghi"[number % 3])
        kit.advance(1)
    assert kit.claim(9, handlers=BOTH) == ["0", "1", "3", "4"]


def claims_find_the_first_they_can_run_behind_many(kit: Kit) -> None:
    """However many unpartitioned tasks of another handler stand before it, a claim finds its own (§8)."""
    kit.publish(*names("g", 700), handler="g", priority=5)
    kit.publish("h", handler="h")
    got = kit.reserve(1, handlers=H)
    assert [kit.name(delivery.id) for delivery in got.deliveries] == ["h"]


def claims_find_the_first_partition_they_can_run_behind_many(kit: Kit) -> None:
    """However many partitions are hidden from it, a claim finds the first that is not (§8)."""
    for number in range(60):
        kit.publish(f"g{number}", handler="g", partition=f"p{number}", priority=5)
    kit.publish("h", handler="h", partition="last")
    assert kit.claim(1, handlers=H) == ["h"]


def claims_do_not_see_a_partition_whose_head_they_cannot_run(kit: Kit) -> None:
    """A head that a claim cannot run hides its whole partition from it, ordered or parallel (§8)."""
    for code in ("!x", "x"):
        kit.publish(f"{code} g", handler="g", partition=code)
        kit.publish(f"{code} h", handler="h", partition=code)
        assert kit.claim(9, handlers=H) == []
        assert kit.claim(1, handlers=G) == [f"{code} g"]
        kit.ack(f"{code} g")
        assert kit.claim(9, handlers=H) == [f"{code} h"]


def claims_see_a_parallel_partition_up_to_what_they_cannot_run(kit: Kit) -> None:
    """Of a parallel partition a claim gets the tasks before the first that it cannot run (§8)."""
    kit.publish("h1", "h2", handler="h", partition="x")
    kit.publish("g", handler="g", partition="x")
    kit.publish("h3", handler="h", partition="x")
    assert kit.claim(9, handlers=H) == ["h1", "h2"]
    assert kit.claim(9, handlers=H) == []
    assert kit.claim(9, handlers=BOTH) == ["g", "h3"]


def claims_end_a_run_at_what_they_cannot_run(kit: Kit) -> None:
    """Followers of a run are tasks that the claim can run, too (§8, §6)."""
    kit.publish("h1", "h2", handler="h", partition="!x")
    kit.publish("g", handler="g", partition="!x")
    kit.publish("h3", handler="h", partition="!x")
    assert kit.claim(9, handlers=H) == ["h1", "h2"]
    kit.ack("h1", "h2")
    assert kit.claim(9, handlers=BOTH) == ["g", "h3"]


def claims_without_keys_end_a_run_at_a_limit(kit: Kit) -> None:
    """A follower with a limit ends the run of a claim that does not support keys (§8, §6)."""
    kit.publish("A", "B", partition="!x")
    kit.publish("C", partition="!x", limit=Limit("k", 1))
    assert kit.claim(9, keys=False) == ["A", "B"]


def hidden_tasks_block_nobody(kit: Kit) -> None:
    """What is hidden blocks nothing: not the unpartitioned, not other partitions, not other queues (§8)."""
    kit.publish("g1", handler="g", priority=9)
    kit.publish("g2", handler="g", priority=9, partition="!x")
    kit.publish("g3", handler="g", priority=9, partition="x")
    kit.publish("h1", handler="h")
    kit.publish("h2", handler="h", partition="!y")
    kit.publish("h3", handler="h", partition="y")
    kit.publish("h4", handler="h", queue="other")
    assert sorted(kit.claim(9, "q", "other", handlers=H)) == ["h1", "h2", "h3", "h4"]


def hidden_tasks_cost_no_turn_between_queues(kit: Kit) -> None:
    """A queue whose tasks are hidden is not served, and not set back either (§8, §5)."""
    kit.publish(*names("a", 3), queue="a", handler="g")
    kit.publish(*names("b", 3), queue="b", handler="h")
    assert kit.claim(2, "a", "b", handlers=H) == ["b1", "b2"]
    assert (kit.stats("a").served, kit.stats("b").served) == (0, 2)
    assert kit.claim(4, "a", "b", handlers=BOTH) == ["a1", "a2", "a3", "b3"]


def hidden_tasks_cost_no_turn_between_partitions(kit: Kit) -> None:
    """A partition that was hidden from claims is next for one that can run it, and has no turns to make up for (§8)."""
    kit.publish(*names("x", 3), handler="g", partition="x")
    kit.publish(*names("y", 6), handler="h", partition="y")
    assert kit.claim(2, handlers=H) == ["y1", "y2"]
    assert kit.claim(4, handlers=BOTH) == ["x1", "x2", "y3", "x3"]


def hidden_tasks_make_no_band(kit: Kit) -> None:
    """Between queues a queue competes with the first task that the claim can run (§8, §5)."""
    kit.publish("a g", queue="a", handler="g", priority=9)
    kit.publish("a h", queue="a", handler="h", priority=1)
    kit.publish("b h", queue="b", handler="h", priority=5)
    assert kit.claim(9, "a", "b", handlers=H) == ["b h", "a h"]


def hidden_heads_of_partitions_make_no_band(kit: Kit) -> None:
    """A hidden partition's urgent head makes no band either (§8, §5)."""
    kit.publish("a g", queue="a", handler="g", priority=9, partition="!x")
    kit.publish("a h", queue="a", handler="h", priority=1, partition="!y")
    kit.publish("b h", queue="b", handler="h", priority=5)
    assert kit.claim(9, "a", "b", handlers=H) == ["b h", "a h"]


def hidden_tasks_take_no_token(kit: Kit) -> None:
    """What is hidden starts nothing: the queue's rate and its places stay for what can run (§8)."""
    kit.configure(rate="2/h", max_running=2)
    kit.publish(*names("g", 3), handler="g", priority=9)
    kit.publish(*names("h", 3), handler="h")
    assert kit.claim(9, handlers=H) == ["h1", "h2"]


def hidden_tasks_keep_their_place(kit: Kit) -> None:
    """A task that was hidden from many claims goes where it stood to the first that can run it (§8, §4)."""
    kit.publish("A", handler="g")
    kit.publish("B", handler="h")
    kit.publish("C", handler="g")
    for _ in range(3):
        assert kit.claim(9, handlers=[("i", "")]) == []
    kit.publish("D", handler="h")
    assert kit.claim(9) == ["A", "B", "C", "D"]


def hidden_is_a_matter_of_each_claim(kit: Kit) -> None:
    """Two workers of different handlers on one queue take turns as if alone, and a batch is n singles to each (§8)."""
    for number in range(6):
        kit.publish(f"g{number}", handler="g", partition=f"p{number % 2}")
        kit.publish(f"h{number}", handler="h", partition=f"r{number % 2}")
    first = kit.claim(3, handlers=G)
    second = kit.claim_one_by_one(6, handlers=H)
    assert first == ["g0", "g1", "g2"]
    assert second == [f"h{number}" for number in range(6)]
    assert kit.claim(9, handlers=G) == ["g3", "g4", "g5"]


def hidden_tasks_come_back_hidden(kit: Kit) -> None:
    """A retried, handed-back or lost task is hidden as before from who cannot run it (§8)."""
    kit.publish("A", handler="g", max_attempts=9)
    ways: list[Callable[[], object]] = [
        *(lambda: kit.retry("A"), lambda: kit.hand_back("A"), kit.lose_leases),
    ]
    for back in ways:
        assert kit.claim(9, handlers=H) == []
        assert kit.claim(9, handlers=G) == ["A"]
        back()
    assert kit.claim(9, handlers=H) == []
    assert kit.claim(9, handlers=G) == ["A"]


def settle_and_reserve_names_capabilities_too(kit: Kit) -> None:
    """The claim of a combined exchange takes only what it can run (§8; base.py)."""
    kit.publish("A", "B", handler="g")
    kit.publish("C", handler="h")
    kit.claim(1, handlers=G)
    settle = Settle(items=[Settlement(kit.delivery("A"), Ack())])
    results, got = kit.store.settle_and_reserve(settle, Reserve(queues=["q"], limit=9, worker="w", handlers=H))
    assert results == [True]
    assert [kit.name(delivery.id) for delivery in got.deliveries] == ["C"]
