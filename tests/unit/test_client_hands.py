"""What a worker of a server makes of each message, without a server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskmq.client.hands import Hands

TOKEN = {"task_id": "0" * 32, "epoch": 1}
TASK = {**TOKEN, "queue_id": "1" * 32, "queue": "q", "handler": "h", "attempt": 1, "max_attempts": 3}


@pytest.fixture
def said() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def hands(said: list[dict[str, Any]]) -> Hands:
    def send(message: dict[str, Any]) -> int:
        said.append(message)
        return len(said)

    made = Hands(send)
    made.hear({"type": "dispatch", "ref": 1, "tasks": [TASK]}, 0.0)
    return made


def test_nothing_runs_before_it_is_started(hands: Hands, said: list[dict[str, Any]]) -> None:
    assert said == [{"type": "start", **TOKEN}]
    assert hands.desk.empty()
    hands.hear({"type": "started", **TOKEN, "attempt": 1, "lease_ms": 30_000}, time.monotonic())
    assert not hands.desk.get_nowait().execution.cancelled  # type: ignore[union-attr]


def test_a_lease_lasts_from_when_it_was_asked_for(hands: Hands) -> None:
    """However late the answer came: the server counts from before it."""
    asked = time.monotonic() - 31
    hands.hear({"type": "started", **TOKEN, "attempt": 1, "lease_ms": 30_000}, asked)
    held = hands.desk.get_nowait()
    assert held is not None
    assert (held.execution.lease_lost, held.execution.cancelled) == (True, True)
    hands.hear({"type": "renewed", "lease_ms": 30_000, "lost": [], "cancel": []}, asked + 30)
    assert (held.execution.lease_lost, held.execution.cancelled) == (False, False)


def test_a_repeated_started_changes_the_lease_and_runs_nothing_twice(hands: Hands) -> None:
    for _ in range(2):
        hands.hear({"type": "started", **TOKEN, "attempt": 1, "lease_ms": 30_000}, time.monotonic())
    assert hands.desk.get_nowait() is not None
    assert hands.desk.empty()


def test_a_lost_lease_is_told_to_the_handler_and_its_result_is_dropped(
    hands: Hands, said: list[dict[str, Any]]
) -> None:
    hands.hear({"type": "started", **TOKEN, "attempt": 1, "lease_ms": 30_000}, time.monotonic())
    held = hands.desk.get_nowait()
    assert held is not None
    hands.hear({"type": "error", "ref": 3, "code": "LEASE_LOST", "message": "", **TOKEN}, 0.0)
    assert held.execution.lease_lost
    said.clear()
    hands.ended(held, {"type": "finish", **TOKEN, "outcome": "success"})
    assert (said, len(hands)) == ([], 0)


def test_a_result_stays_until_it_is_confirmed_and_is_said_again_at_resume(
    hands: Hands, said: list[dict[str, Any]]
) -> None:
    hands.hear({"type": "started", **TOKEN, "attempt": 1, "lease_ms": 30_000}, time.monotonic())
    held = hands.desk.get_nowait()
    assert held is not None
    end = {"type": "finish", **TOKEN, "outcome": "success"}
    hands.ended(held, end)
    resumed = [{**TOKEN, "phase": "started", "attempt": 1, "lease_ms": 30_000}]
    hands.resume({"lost": [], "resumed": resumed}, time.monotonic())
    assert said[1:] == [end, end]
    hands.hear({"type": "finished", "ref": 4, "state": "SUCCEEDED", **TOKEN}, 0.0)
    assert len(hands) == 0
