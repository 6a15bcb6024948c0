from __future__ import annotations

import logging
import os
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from taskmq import App, Context, Retry, TaskMQError, current
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


class Label(str):
    """Text of a class of its own, as template engines have."""


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_note_reaches_the_store_as_plain_text_or_is_refused(tmp_path: Path, pool: str) -> None:
    """No note can end the worker: one without a UTF-8 form is the handler's own error."""
    app = App(f"sqlite:///{tmp_path}/q.db", lease=0.3)

    @app.task(retry=Retry(max_attempts=1))
    def told(kind: str) -> str:
        if kind == "label":
            current().progress(1, 2, Label("half"))
            return "told"
        current().progress(1, 2, "caf\udce9.txt")
        return "never"

    handles = [told.enqueue(kind) for kind in ("label", "surrogate")]
    with app.worker(pool=pool) as worker:
        assert worker.drain(20)
    assert handles[0].result() == "told"
    assert "has no UTF-8 form" in str(handles[1].info().error)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_handler_s_context_variables_are_its_own(pool: str) -> None:
    """What one task sets, the next one of the same thread does not see."""
    tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
    seen: list[str | None] = []
    app = App("memory://")

    @app.task
    def work(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    with app.worker(pool=pool, concurrency=1) as worker:
        for name in ("a", "b", "c"):
            work.enqueue(name)
        assert worker.drain(20)
    assert seen == [None, None, None]


def test_a_process_that_a_handler_forks_does_not_speak_for_it(tmp_path: Path) -> None:
    """Only the worker's own process tells how the task ended; the other one ends when the handler returns."""
    app = App(f"sqlite:///{tmp_path}/q.db")

    @app.task
    def forks() -> str:
        child = os.fork()
        if child == 0:
            return "child"
        assert os.waitpid(child, 0)[1] == 0
        return "parent"

    handle = forks.enqueue()
    with app.worker(concurrency=1) as worker:
        assert worker.drain(20)
    assert handle.result() == "parent"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), ValueError("x")], ids=repr)
def test_a_hook_that_raises_changes_nothing(error: BaseException) -> None:
    """Whatever it raises is logged, and the task ends as its handler has ended."""
    app = App("memory://")

    @app.on("after_run")
    def hook(*_: Any) -> None:
        raise error

    @app.task
    def work() -> str:
        return "done"

    handle = work.enqueue()
    with app.worker(concurrency=1) as worker:
        assert worker.drain(20)
    assert handle.result() == "done"
