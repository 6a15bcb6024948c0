"""Publish: what is stored, in which order, and that nothing is changed on the way."""

from __future__ import annotations

from taskmq import codec
from taskmq.durations import Moment
from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import SECOND, Kit, names
from taskmq.transport.base import PUBLISH_BATCH


def publish_returns_a_receipt_for_each_message_in_order(kit: Kit) -> None:
    """A publish answers each message with its task's id, in order (base.py)."""
    receipts = kit.publish("A", "B", "C")
    assert [kit.name(receipt.id) for receipt in receipts] == ["A", "B", "C"]
    assert [receipt.duplicate for receipt in receipts] == [False, False, False]


def publish_makes_a_task_queued(kit: Kit) -> None:
    """A new task without delay is QUEUED, with no attempt and no epoch (§2)."""
    kit.publish("A")
    info = kit.info("A")
    assert (info.state, info.attempt, info.epoch) == (TaskState.QUEUED, 0, 0)
    assert (info.created_at, info.available_at) == (kit.now, kit.now)
    assert (info.started_at, info.finished_at, info.worker, info.lease_until) == (None, None, None, None)


def publish_of_nothing_is_harmless(kit: Kit) -> None:
    """An empty batch has an empty answer (base.py)."""
    assert kit.publish_all([]) == []


def publish_takes_a_full_batch_in_order(kit: Kit) -> None:
    """A batch as large as one publish may be is stored in its order (defaults.md, §4)."""
    wanted = names("T", PUBLISH_BATCH)
    kit.publish(*wanted)
    assert kit.claim(PUBLISH_BATCH) == wanted


def publish_numbers_tasks_in_order_of_acceptance(kit: Kit) -> None:
    """``seq`` is given at publish and grows over batches and queues (§4)."""
    kit.publish("A", "B", queue="one")
    kit.publish("C", queue="two")
    kit.publish_all([kit.message("D", "two"), kit.message("E", "one")])
    seqs = [kit.info(name).seq for name in "ABCDE"]
    assert seqs == sorted(set(seqs))


def publish_fills_several_queues_in_one_batch(kit: Kit) -> None:
    """A batch may go to several queues; each task is claimed from its own (§1)."""
    kit.publish_all([kit.message("A", "one"), kit.message("B", "two"), kit.message("C", "one")])
    assert kit.claim(9, "two") == ["B"]
    assert kit.claim(9, "one") == ["A", "C"]


def publish_keeps_queues_apart_by_their_very_names(kit: Kit) -> None:
    """Queues whose names differ in case only are two queues (§8, names)."""
    kit.publish("upper", queue="Mail")
    kit.publish("lower", queue="mail")
    assert kit.claim(9, "mail") == ["lower"]
    assert kit.claim(9, "Mail") == ["upper"]


def publish_takes_every_character_of_a_name(kit: Kit) -> None:
    """Names of 128 characters of ``A-Za-z0-9_.:/-`` are names (§8)."""
    queue = "A-z.0_9:/" + "q" * 119
    handler = "h/" + "0" * 126
    kit.publish("A", queue=queue, handler=handler)
    assert kit.claim(1, queue) == ["A"]
    assert (kit.delivery("A").queue, kit.delivery("A").handler) == (queue, handler)


def publish_takes_braces_in_a_name(kit: Kit) -> None:
    """Braces are characters of names, too; a cluster may refuse them (§8)."""
    kit.publish("A", queue="{mail}", handler="a{b}")
    assert kit.claim(1, "{mail}") == ["A"]
    assert (kit.delivery("A").queue, kit.delivery("A").handler) == ("{mail}", "a{b}")


def publish_takes_the_longest_codes_and_keys(kit: Kit) -> None:
    """Partition codes of 255 bytes and keys of 512 bytes of any text are kept whole and told apart by the last (§8)."""
    code, key = "é" * 126 + "ab", "🙂" * 127 + "abc"
    assert (len(code.encode()), len(key.encode())) == (254, 511)
    for number, end in enumerate("xy"):
        kit.publish(f"T{number}", partition=code + end, key=key + end, limit=Limit(key + end, 1), args=[number])
    assert [info.code for info in kit.store.partitions("q")] == [code + "x", code + "y"]
    assert kit.claim(9) == ["T0", "T1"]
    assert (kit.delivery("T1").partition, kit.info("T1").key) == (code + "y", key + "y")
    assert [info.key for info in kit.store.limits()] == [key + "x", key + "y"]
    assert kit.publish("again", partition=code + "y", key=key + "y", limit=Limit(key + "y", 1), args=[1])[0].duplicate


def publish_shows_what_was_given(kit: Kit) -> None:
    """``get`` shows a task as it was published (§1)."""
    kit.publish(
        "A",
        handler="mail.send",
        args=["Zażółć", 1, {"deep": [None, True]}],
        headers={"trace": "00-ab"},
        tags=("red", "blue"),
        priority=7,
        partition="tenant-7",
        key="order-1",
        max_attempts=9,
    )
    info = kit.info("A")
    assert (info.id, info.queue, info.handler) == (kit.id("A"), "q", "mail.send")
    assert (info.args, info.kwargs) == (["Zażółć", 1, {"deep": [None, True]}], {})
    assert (info.headers, sorted(info.tags)) == ({"trace": "00-ab"}, ["blue", "red"])
    assert (info.priority, info.partition, info.key, info.max_attempts) == (7, "tenant-7", "order-1", 9)


def publish_delivers_what_was_given(kit: Kit) -> None:
    """A delivery carries the message unchanged, byte for byte (§1)."""
    message = kit.message("A", priority=4, partition="!acct-42", max_attempts=5, expires=60, deadline=90, args=["é"])
    kit.publish_all([message])
    published = kit.now
    kit.advance(1)
    kit.claim()
    got = kit.delivery("A")
    assert (got.id, got.queue, got.handler, got.body) == (message.id, "q", message.handler, message.body)
    assert (got.priority, got.partition, got.ordered, got.max_attempts) == (4, "!acct-42", True, 5)
    assert (got.created_at, got.deadline_at) == (published, published + 90 * SECOND)
    assert got.expires_at == published + 60 * SECOND


def publish_resolves_times_by_the_store_clock(kit: Kit) -> None:
    """Durations count from the store's now; absolute times stay as they are (§9)."""
    at = kit.now + 20 * SECOND
    kit.publish("relative", delay=10, deadline=30)
    kit.publish("absolute", run_after=Moment(at, relative=False))
    assert kit.info("relative").available_at == kit.now + 10 * SECOND
    assert kit.info("absolute").available_at == at


def publish_keeps_large_arguments(kit: Kit) -> None:
    """Arguments of 900 KiB come back whole (defaults.md)."""
    text = "ż" * (450 * 1024)
    kit.publish("A", args=[text])
    kit.claim()
    assert codec.decode(kit.delivery("A").body).args == codec.decode(kit.message("B", args=[text]).body).args


def publish_keeps_any_text(kit: Kit) -> None:
    """Arguments may hold any text: emoji, quotes, escapes, a NUL (§1)."""
    args = ["😀 \"quoted\" 'single' \\ \n \x00 %s {} ; DROP TABLE"]
    kit.publish("A", args=args, headers={"h": args[0]}, tags=("ą,b", "😀"))
    info = kit.info("A")
    assert (info.args, info.headers, sorted(info.tags)) == (args, {"h": args[0]}, sorted(["ą,b", "😀"]))
