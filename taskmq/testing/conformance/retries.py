"""Retries: when, in which state, and what is remembered (§2)."""

from __future__ import annotations

from taskmq.outcome import Retry
from taskmq.state import TaskState
from taskmq.testing.conformance.kit import Kit, us


def retry_runs_again_after_the_delay(kit: Kit) -> None:
    """A retried task is RETRYING until its delay is over, then QUEUED and claimed with its next attempt (§2)."""
    kit.publish("A")
    kit.claim()
    kit.retry("A", delay=10)
    assert (kit.state("A"), kit.info("A").available_at) == (TaskState.RETRYING, kit.now + us(10))
    kit.advance(9.999999)
    assert (kit.state("A"), kit.claim()) == (TaskState.RETRYING, [])
    kit.advance(0.000001)
    assert (kit.state("A"), kit.claim()) == (TaskState.QUEUED, ["A"])
    assert kit.delivery("A").attempt == 2


def retry_in_an_ordered_partition_shows_the_same_states(kit: Kit) -> None:
    """The retried head of an ordered partition is RETRYING, then QUEUED, like any other (§2)."""
    kit.publish("A", partition="!x")
    kit.claim()
    kit.retry("A", delay=10)
    assert kit.state("A") is TaskState.RETRYING
    kit.advance(10)
    assert kit.state("A") is TaskState.QUEUED


def retry_without_delay_is_available_at_once(kit: Kit) -> None:
    """A retry without delay is QUEUED at once (§2)."""
    kit.publish("A")
    kit.claim()
    kit.retry("A")
    assert (kit.state("A"), kit.claim()) == (TaskState.QUEUED, ["A"])


def retry_records_the_attempt(kit: Kit) -> None:
    """The history tells of each failed attempt: number, epoch, worker, error; traceback of the newest (§2)."""
    kit.publish("A")
    for number, worker in ((1, "w1"), (2, "w2")):
        kit.claim(worker=worker)
        kit.settle("A", Retry(0, f"E: {number}", f"Traceback {number}"))
        kit.advance(1)
    info = kit.info("A")
    assert [(a.attempt, a.outcome, a.error, a.worker) for a in info.attempts] == [
        (1, "retry", "E: 1", "w1"),
        (2, "retry", "E: 2", "w2"),
    ]
    assert [attempt.ended_at for attempt in info.attempts] == [kit.now - us(2), kit.now - us(1)]
    assert info.attempts[0].epoch < info.attempts[1].epoch
    assert info.attempts[1].traceback == "Traceback 2"
    assert (info.error, info.traceback) == ("E: 2", "Traceback 2")


def retry_history_follows_a_task_to_the_dead_letters(kit: Kit) -> None:
    """A dead task carries all attempts' history (§2)."""
    kit.publish("A")
    kit.claim()
    kit.retry("A", error="E: first")
    kit.claim()
    kit.die("A", error="E: last")
    assert [(a.outcome, a.error) for a in kit.info("A").attempts] == [("retry", "E: first"), ("dead", "E: last")]


def retry_history_stays_short(kit: Kit) -> None:
    """A long history keeps its first and its last attempts (state.py)."""
    kit.publish("A", max_attempts=1000)
    for number in range(1, 61):
        kit.claim()
        kit.retry("A", error=f"E: {number}")
    attempts = [attempt.attempt for attempt in kit.info("A").attempts]
    assert attempts[0] == 1
    assert attempts[-1] == 60
    assert attempts == sorted(attempts)
    assert len(attempts) < 60


def retry_delays_its_own_task_only(kit: Kit) -> None:
    """Unpartitioned tasks do not wait for one that is retried (§6)."""
    kit.publish("A", "B")
    kit.claim()
    kit.retry("A", delay=60)
    assert kit.work_off() == ["B"]


def retry_of_many_at_once_comes_back_complete(kit: Kit) -> None:
    """Tasks retried together with different delays come back each at its time (§2)."""
    wanted = [f"T{delay}" for delay in range(1, 21)]
    kit.publish(*wanted)
    kit.claim(20)
    assert all(kit.settle_all([(f"T{delay}", Retry(us(21 - delay))) for delay in range(1, 21)]))
    back: list[str] = []
    for _ in range(20):
        kit.advance(1)
        back += kit.claim(20)
    assert back == wanted[::-1]


def retry_of_a_partition_without_one_is_a_retry(kit: Kit) -> None:
    """``RetryLater(delay, partition=True)`` of an unpartitioned task delays that task only (§6)."""
    kit.publish("A", "B")
    kit.claim()
    kit.retry("A", delay=10, partition=True)
    assert kit.work_off() == ["B"]
    kit.advance(10)
    assert kit.work_off() == ["A"]


def retry_keeps_its_partition_alive(kit: Kit) -> None:
    """A partition whose task waits for a retry is still a partition (§6, §11)."""
    kit.publish("A", partition="x", weight=4)
    kit.claim()
    kit.retry("A", delay=10)
    info = kit.partition("x")
    assert info is not None
    assert (info.weight, info.waiting, info.running) == (4, 1, 0)
