from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from taskmq import Context, TaskMQError, current
from taskmq.codec import Envelope
from taskmq.context import enter, leave
from taskmq.message import Delivery


def delivery(**changes: Any) -> Delivery:
    fields: dict[str, Any] = {
        "id": "0" * 32,
        "queue": "mail",
        "handler": "shop.send",
        "body": b"{}",
        "priority": 3,
        "attempt": 2,
        "max_attempts": 5,
        "epoch": 7,
        "lease_until": 1_800_000_000_000_000,
        "lease": 30_000_000,
    }
    return Delivery(**{**fields, **changes})


def test_outside_a_handler_there_is_no_context() -> None:
    """current() raises where no worker runs a handler, and says so."""
    with pytest.raises(TaskMQError, match="only inside a handler"):
        current()


def test_inside_it_is_the_one_that_was_entered() -> None:
    """Contexts nest, and leaving one brings the outer one back."""
    outer, inner = Context(delivery(), Envelope()), Context(delivery(), Envelope())
    first = enter(outer)
    second = enter(inner)
    assert current() is inner
    leave(second)
    assert current() is outer
    leave(first)
    with pytest.raises(TaskMQError):
        current()


def test_it_tells_what_is_known_of_the_task() -> None:
    """Every property is that of the delivery and its envelope."""
    context = Context(
        delivery(partition="!acct-42", deadline_at=1_800_000_060_000_000),
        Envelope(headers={"trace": "1"}, tags=["night"]),
    )
    assert (context.task_id, context.attempt, context.epoch, context.priority) == ("0" * 32, 2, 7, 3)
    assert (context.queue, context.handler, context.partition) == ("mail", "shop.send", "!acct-42")
    assert (context.headers, context.tags) == ({"trace": "1"}, ["night"])
    assert context.deadline == datetime(2027, 1, 15, 8, 1, tzinfo=UTC)
    assert context.lease_until == datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
    assert context.cancelled is False


def test_a_task_without_a_deadline_has_none() -> None:
    """No deadline is None, not the beginning of time."""
    assert Context(delivery(), Envelope()).deadline is None


def test_the_lease_is_the_renewed_one() -> None:
    """What the heartbeat writes into the delivery is what the handler sees."""
    held = delivery()
    context = Context(held, Envelope())
    held.lease_until += 10_000_000
    assert context.lease_until == datetime(2027, 1, 15, 8, 0, 10, tzinfo=UTC)


def test_log_records_carry_the_task(caplog: pytest.LogCaptureFixture) -> None:
    """Records of context.log have task id, handler, queue and attempt as attributes."""
    context = Context(delivery(), Envelope())
    with caplog.at_level(logging.INFO, logger="taskmq.task"):
        context.log.info("half of %s", "it")
    record = caplog.records[0]
    assert record.getMessage() == "half of it"
    assert {name: record.__dict__[name] for name in ("task_id", "handler", "queue", "attempt")} == {
        "task_id": "0" * 32,
        "handler": "shop.send",
        "queue": "mail",
        "attempt": 2,
    }
    assert context.log is context.log
