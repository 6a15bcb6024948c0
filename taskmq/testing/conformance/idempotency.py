"""Idempotent publish: one key, one task, and when a key is free again (§7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskmq.errors import IdempotencyConflict
from taskmq.message import Message
from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit

DAY = 86400


def _conflict(kit: Kit, messages: Sequence[Message]) -> IdempotencyConflict:
    try:
        kit.publish_all(messages)
    except IdempotencyConflict as conflict:
        return conflict
    raise AssertionError("the publish was accepted although its key is taken by different content")


def _is_free(kit: Kit, key: str = "k") -> bool:
    """Whether a message with this key and new content is accepted."""
    try:
        return not kit.publish("probe", key=key, handler="probe")[0].duplicate
    except IdempotencyConflict:
        return False


def publish_with_a_known_key_returns_the_first_task(kit: Kit) -> None:
    """Same key, same content: the first task's id, marked as a duplicate, and no second task (§7, §10.7)."""
    (first,) = kit.publish("A", key="k", args=[1])
    (second,) = kit.publish("B", key="k", args=[1])
    assert (second.id, second.duplicate) == (first.id, True)
    assert kit.claim(9) == ["A"]


def publish_with_a_known_key_and_other_content_conflicts(kit: Kit) -> None:
    """Same key, different content: IdempotencyConflict, which names the key and its task; nothing is stored (§7)."""
    kit.publish("A", key="k", args=[1])
    conflict = _conflict(kit, [kit.message("B", key="k", args=[2])])
    assert (conflict.key, conflict.task_id) == ("k", kit.id("A"))
    assert kit.claim(9) == ["A"]


def publish_compares_everything_that_matters(kit: Kit) -> None:
    """Handler, arguments, priority, partition, timing, budget, limit, retention and tags are content (§7)."""
    kit.publish("A", key="k")
    others: list[dict[str, Any]] = [
        *({"handler": "other"}, {"args": [0]}, {"headers": {"a": "b"}}, {"priority": 1}, {"tags": ("t",)}),
        *({"partition": "p"}, {"partition": "!p"}, {"delay": 5}, {"expires": 5}, {"deadline": 5}),
        *({"max_attempts": 4}, {"retention": 5}, {"version": "2"}, {"limit": Limit("k", 1)}),
    ]
    for other in others:
        assert _conflict(kit, [kit.message("B", key="k", **other)]).task_id == kit.id("A"), other


def publish_compares_what_a_partition_and_a_limit_are_given(kit: Kit) -> None:
    """A partition's weight and max_running and a limit's n are content, too (§7)."""
    kit.publish("A", key="k", partition="p", weight=2, most=3, limit=Limit("k", 4))
    same: dict[str, Any] = {"partition": "p", "weight": 2, "most": 3, "limit": Limit("k", 4)}
    assert kit.publish("B", key="k", **same)[0].duplicate
    for other in ({"weight": 3}, {"weight": None}, {"most": 4}, {"most": None}, {"limit": Limit("k", 5)}):
        assert _conflict(kit, [kit.message("C", key="k", **{**same, **other})]).task_id == kit.id("A"), other


def publish_takes_defaults_for_absent(kit: Kit) -> None:
    """Defaults count as absent: saying them does not make other content (§7)."""
    kit.publish("A", key="k")
    explicit = kit.message("B", key="k", priority=0, max_attempts=3, delay=0, tags=(), key_until="retention")
    (receipt,) = kit.publish_all([explicit])
    assert (receipt.id, receipt.duplicate) == (kit.id("A"), True)


def publish_sent_again_is_stored_once(kit: Kit) -> None:
    """A publish whose answer was lost may be sent again: the same message is one task (§7, §10.7)."""
    first, second = kit.message("A"), kit.message("B")
    kit.publish_all([first])
    receipts = kit.publish_all([first, second])
    assert [(receipt.id, receipt.duplicate) for receipt in receipts] == [(first.id, True), (second.id, False)]
    assert kit.claim(9) == ["A", "B"]


def publish_of_one_message_twice_in_a_batch_is_one_task(kit: Kit) -> None:
    """A message that stands twice in a batch is stored once (§10.7)."""
    message = kit.message("A")
    assert [receipt.duplicate for receipt in kit.publish_all([message, message])] == [False, True]
    assert kit.claim(9) == ["A"]


def publish_sent_again_after_the_end_is_not_run_again(kit: Kit) -> None:
    """Sent again after its task has ended, a message is still that task (§10.7)."""
    message = kit.message("A")
    kit.publish_all([message])
    kit.claim()
    kit.ack("A")
    assert kit.publish_all([message])[0].duplicate
    assert (kit.claim(9), kit.state("A")) == ([], TaskState.SUCCEEDED)


def publish_keeps_keys_apart_by_queue(kit: Kit) -> None:
    """The same key in two queues is two keys (§7, scope)."""
    kit.publish("A", queue="one", key="k", args=[1])
    assert not kit.publish("B", queue="two", key="k", args=[2])[0].duplicate
    assert kit.claim(9, "one", "two") == ["A", "B"]


def publish_compares_keys_as_bytes(kit: Kit) -> None:
    """Keys are compared as bytes: case, a blank at the end and the form of an accent make another key (§8, names)."""
    keys = ["key", "Key", "key ", " key", "k\u00e9y", "ke\u0301y", "кеу", "k%y", "k_y", "k" * 512, "ż" * 256]
    for number, key in enumerate(keys):
        assert not kit.publish(f"T{number}", key=key, args=[number])[0].duplicate, repr(key)
    for number, key in enumerate(keys):
        assert kit.publish("again", key=key, args=[number])[0].id == kit.id(f"T{number}")


def publish_finds_duplicates_inside_one_batch(kit: Kit) -> None:
    """Duplicates inside one batch are found, too (§7)."""
    batch = [kit.message("A", key="k"), kit.message("B"), kit.message("C", key="k")]
    receipts = kit.publish_all(batch)
    assert [receipt.duplicate for receipt in receipts] == [False, False, True]
    assert receipts[2].id == kit.id("A")
    assert kit.claim(9) == ["A", "B"]


def publish_finds_conflicts_inside_one_batch(kit: Kit) -> None:
    """Two different contents for one key inside one batch conflict; nothing of the batch is stored (§7)."""
    batch = [kit.message("A", key="k", args=[1]), kit.message("B", key="k", args=[2])]
    assert _conflict(kit, batch).key == "k"
    assert kit.claim(9) == []
    assert _is_free(kit)


def publish_refuses_the_whole_batch_on_a_conflict(kit: Kit) -> None:
    """A conflict refuses the whole batch, its new keys included (§7)."""
    kit.publish("A", key="k", args=[1])
    batch = [kit.message("B"), kit.message("C", key="new"), kit.message("D", key="k", args=[2]), kit.message("E")]
    assert _conflict(kit, batch).task_id == kit.id("A")
    assert kit.states("B", "C", "D", "E") == [None, None, None, None]
    assert _is_free(kit, "new")
    assert kit.claim(9) == ["A", "probe"]


def publish_of_a_batch_is_atomic_over_queues(kit: Kit) -> None:
    """A conflict in one queue refuses the messages for the other queues of the batch, too (§7)."""
    kit.publish("A", queue="one", key="k", args=[1])
    _conflict(kit, [kit.message("B", "two"), kit.message("C", "one", key="k", args=[2])])
    assert kit.state("B") is None
    assert kit.claim(9, "two") == []


def publish_takes_a_batch_of_duplicates_twice(kit: Kit) -> None:
    """Sending a whole batch again changes nothing and answers with the first ids (§7)."""
    first = kit.publish_all([kit.message(name, key=name) for name in "ABC"])
    again = kit.publish_all([kit.message(f"{name}2", key=name) for name in "ABC"])
    assert [receipt.id for receipt in again] == [receipt.id for receipt in first]
    assert all(receipt.duplicate for receipt in again)
    assert kit.claim(9) == ["A", "B", "C"]


def publish_keeps_a_key_taken_while_its_task_lives(kit: Kit) -> None:
    """A key stays taken while its task waits, runs, retries and is kept (§7)."""
    kit.publish("A", key="k")
    kit.claim()
    assert kit.publish("B", key="k")[0].id == kit.id("A")
    kit.retry("A", delay=5)
    assert kit.publish("B", key="k")[0].id == kit.id("A")
    kit.advance(5)
    kit.claim()
    kit.ack("A")
    assert kit.publish("B", key="k")[0].id == kit.id("A")
    assert not _is_free(kit)


def publish_frees_a_key_with_the_record(kit: Kit) -> None:
    """A key is freed when its task's record is deleted at the end of its retention (§7)."""
    kit.publish("A", key="k")
    kit.claim()
    kit.ack("A")
    kit.advance(DAY - 1)
    kit.maintain()
    assert not _is_free(kit)
    kit.advance(1)
    kit.maintain()
    assert _is_free(kit)


def publish_frees_a_key_at_once_without_retention(kit: Kit) -> None:
    """Without retention record and key go at the end of the task (§7)."""
    kit.publish("A", key="k", retention=0)
    kit.claim()
    kit.ack("A")
    assert _is_free(kit)


def publish_frees_a_key_after_its_ttl(kit: Kit) -> None:
    """With ``key_ttl`` a key is freed so long after acceptance, whatever its task does (§7)."""
    kit.publish("A", key="k", key_ttl=60)
    kit.advance(59)
    assert not _is_free(kit)
    kit.advance(1)
    assert _is_free(kit)
    assert kit.state("A") is TaskState.QUEUED


def publish_keeps_a_key_for_its_ttl_beyond_the_record(kit: Kit) -> None:
    """With ``key_ttl`` a key outlives its task's record (§7)."""
    kit.publish("A", key="k", key_ttl=60, retention=0)
    kit.claim()
    kit.ack("A")
    assert kit.state("A") is None
    kit.maintain()
    kit.advance(59)
    kit.maintain()
    assert not _is_free(kit)
    kit.advance(1)
    assert _is_free(kit)


def publish_keeps_the_new_owner_of_a_key_when_the_old_task_ends(kit: Kit) -> None:
    """A key taken over after its ttl is the new task's: the old one's end does not free it (§7, §10.7)."""
    kit.publish("A", key="k", key_ttl=60, args=[1])
    kit.advance(60)
    kit.publish("B", key="k", args=[2])
    kit.claim(2)
    kit.ack("A")
    kit.advance(2 * DAY)
    kit.maintain()
    assert kit.publish("C", key="k", args=[2])[0].id == kit.id("B")


def publish_frees_a_key_until_finished(kit: Kit) -> None:
    """With ``key_until="finished"`` a key is freed when its task ends, not before (library.md)."""
    kit.publish("A", key="k", key_until="finished")
    kit.claim()
    kit.retry("A")
    assert not _is_free(kit)
    kit.claim()
    kit.ack("A")
    assert kit.state("A") is TaskState.SUCCEEDED
    assert _is_free(kit)


def publish_frees_the_key_of_a_purged_task(kit: Kit) -> None:
    """Purging a record frees its key (§7; base.py, purge)."""
    kit.publish("A", key="k")
    kit.claim()
    kit.ack("A")
    kit.store.purge([kit.id("A")])
    assert _is_free(kit)


def publish_keeps_the_keys_of_tasks_that_did_not_succeed(kit: Kit) -> None:
    """Dead, cancelled and expired tasks keep their keys as long as their records (§7)."""
    kit.publish("dead", key="d")
    kit.claim()
    kit.die("dead")
    kit.publish("cancelled", key="c")
    kit.cancel("cancelled")
    kit.publish("expired", key="e", expires=1)
    kit.advance(1)
    kit.maintain()
    assert kit.states("cancelled", "expired") == [TaskState.CANCELLED, TaskState.EXPIRED]
    assert not any(_is_free(kit, key) for key in "dce")
    kit.advance(7 * DAY)
    kit.maintain()
    assert all(_is_free(kit, key) for key in "dce")


def publish_of_a_duplicate_changes_nothing(kit: Kit) -> None:
    """A duplicate changes neither the place nor the times of the first task (§7)."""
    kit.publish("A", key="k", delay=10)
    kit.publish("B", delay=10)
    before = kit.info("A")
    kit.advance(5)
    kit.publish("A2", key="k", delay=10)
    assert kit.store.get([before.id]) == [before]
    kit.advance(5)
    assert kit.claim(9) == ["A", "B"]
