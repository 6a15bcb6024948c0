"""Results and how long they are kept (§2, defaults.md)."""

from __future__ import annotations

from typing import Any

import msgspec

from taskmq.outcome import Ack
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit, names, needs, us
from taskmq.transport.base import Maintain

DAY = 86400


def _finish(kit: Kit, name: str, **options: Any) -> None:
    kit.publish(name, **options)
    kit.claim()
    kit.ack(name)


def ack_stores_the_result(kit: Kit) -> None:
    """An ack stores the result, as it was given (§2)."""
    for name, result in {"text": "Zażółć 😀 \x00", "map": {"n": [1, 2.5, None]}, "list": [], "zero": 0}.items():
        kit.publish(name)
        kit.claim()
        kit.ack(name, result=result)
        assert kit.info(name).result == result


def ack_without_a_result_stores_none(kit: Kit) -> None:
    """No result is None, and so is the result null (outcome.py)."""
    kit.publish("A", "B")
    kit.claim(2)
    kit.ack("A")
    kit.settle("B", Ack(b"null"))
    assert (kit.info("A").result, kit.info("B").result) == (None, None)


def ack_keeps_large_results(kit: Kit) -> None:
    """A result of 900 KiB comes back whole (defaults.md)."""
    text = "ż" * (450 * 1024)
    kit.publish("A")
    kit.claim()
    assert kit.settle("A", Ack(msgspec.json.encode(text)))
    assert kit.info("A").result == text


def ack_keeps_the_record_for_a_day(kit: Kit) -> None:
    """Record and result of a success are kept for one day by default (defaults.md)."""
    _finish(kit, "A")
    assert kit.info("A").delete_at == kit.now + us(DAY)
    kit.advance(DAY - 1)
    kit.maintain()
    assert kit.state("A") is TaskState.SUCCEEDED
    kit.advance(1)
    assert kit.maintain().deleted == 1
    assert kit.look("A") is None


def failures_are_kept_for_a_week(kit: Kit) -> None:
    """Dead, cancelled and expired tasks are kept for seven days by default (defaults.md)."""
    kit.publish("dead", "cancelled")
    kit.publish("expired", expires=0.5)
    kit.claim()
    kit.die("dead")
    kit.cancel("cancelled")
    kit.advance(1)
    kit.maintain()
    kit.advance(7 * DAY - 2)
    kit.maintain()
    assert kit.states("dead", "cancelled", "expired") == [TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED]
    kit.advance(2)
    kit.maintain()
    assert kit.states("dead", "cancelled", "expired") == [None, None, None]


def retention_of_the_task_overrides_the_default(kit: Kit) -> None:
    """A task's own retention holds, however it ended (defaults.md)."""
    _finish(kit, "A", retention=60)
    kit.publish("B", retention=60)
    kit.claim()
    kit.die("B")
    kit.advance(59)
    kit.maintain()
    assert kit.states("A", "B") == [TaskState.SUCCEEDED, TaskState.FAILED]
    kit.advance(1)
    kit.maintain()
    assert kit.states("A", "B") == [None, None]


def retention_of_zero_keeps_nothing(kit: Kit) -> None:
    """Retention 0: the record is gone with the end of the task (defaults.md)."""
    _finish(kit, "A", retention=0)
    assert kit.look("A") is None
    assert kit.find() == []


def retention_counts_from_the_end(kit: Kit) -> None:
    """Waiting and running tasks are kept however old they are (§10.1)."""
    kit.publish("A", "B", retention=60, max_attempts=9)
    kit.claim()
    kit.advance(10 * DAY)
    kit.maintain()
    assert kit.states("A", "B") == [TaskState.QUEUED, TaskState.QUEUED]
    kit.claim()
    kit.ack("A")
    kit.maintain()
    assert kit.state("A") is TaskState.SUCCEEDED


def maintain_deletes_in_bounded_batches(kit: Kit) -> None:
    """One maintain deletes at most its limit and says that there is more (base.py)."""
    kit.publish(*names("T", 7), retention=1)
    kit.work_off(n=7)
    kit.advance(1)
    first = kit.store.maintain(Maintain(limit=3))
    assert (first.deleted, first.more) == (3, True)
    assert kit.maintain().deleted == 4


@needs("shared")
def ack_shows_the_result_to_everybody(kit: Kit) -> None:
    """A result is in the store: every process sees it (§2)."""
    other = kit.open()
    kit.publish("A")
    kit.claim()
    kit.ack("A", result={"n": 1})
    (info,) = other.get([kit.id("A")])
    assert info is not None
    assert (info.state, info.result) == (TaskState.SUCCEEDED, {"n": 1})
