"""How outcomes travel to the store: order, runs, refusals."""

from __future__ import annotations

import logging
from itertools import count

import pytest

from taskmq.message import Delivery
from taskmq.outcome import Ack, Dead, Defer, Outcome, Retry, Yield
from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import NEVER, Job, Run, job_of
from taskmq.worker.settling import YIELD, Settling, given_up
from taskmq.worker.stats import Stats

_ids = count()
SENT, RECEIVED = 100.0, 100.5


def delivery(
    *, name: str = "", attempt: int = 1, max_attempts: int = 3, expires_in: int | None = None, lease: int = 30_000_000
) -> Delivery:
    now = 1_800_000_000_000_000
    return Delivery(
        id=name or f"t{next(_ids)}",
        queue="q",
        handler="h",
        body=b"{}",
        priority=0,
        attempt=attempt,
        max_attempts=max_attempts,
        epoch=1,
        lease_until=now + lease,
        lease=lease,
        expires_at=None if expires_in is None else now + expires_in,
    )


class Bench:
    """A desk and a settling whose jobs a test ends by hand."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.desk = Desk(1)
        self.settling = Settling(self.desk, self.stats)

    def job(self, name: str = "", *, attempt: int = 1) -> Job:
        job = job_of(delivery(name=name, attempt=attempt), SENT, RECEIVED)
        self.settling.ledger.add(job)
        return job

    def run(self, *names: str) -> list[Job]:
        members = [self.job(name) for name in names]
        run = Run()
        for member in members:
            member.run = run
        run.rest.extend(members[1:])
        return members

    def end(self, job: Job, outcome: Outcome, *, took: float = 0.01, at: float = 200.0) -> None:
        job.started, job.ended = at - took, at
        self.desk.done(job, outcome)

    def pending(self) -> list[tuple[str, str]]:
        return [(job.delivery.id, type(job.outcome).__name__) for job in self.settling.pending]

    def answer(self, *answers: bool) -> None:
        self.settling.answered(self.settling.pending[: len(answers)], list(answers))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_outcomes_are_settled_in_the_order_they_ended(bench: Bench) -> None:
    """Collecting keeps the order, over several collects too."""
    for name in "abc":
        bench.end(bench.job(name), Ack())
        bench.settling.collect()
    assert [name for name, _ in bench.pending()] == ["a", "b", "c"]


def test_the_rest_of_a_run_goes_back_behind_what_ended(bench: Bench) -> None:
    """A retried head is settled first, then the not-started rest is handed back, last first."""
    head, *_ = bench.run("1", "2", "3")
    bench.end(head, Retry(0))
    bench.settling.collect()
    assert bench.pending() == [("1", "Retry"), ("3", "Yield"), ("2", "Yield")]


def test_an_unstarted_run_goes_back_last_first(bench: Bench) -> None:
    """A head that was not started itself goes back after its followers."""
    head, *_ = bench.run("1", "2", "3")
    bench.desk.done(head, YIELD)
    bench.settling.collect()
    assert bench.pending() == [("3", "Yield"), ("2", "Yield"), ("1", "Yield")]


def test_an_acked_head_leaves_its_run_alone(bench: Bench) -> None:
    """After an Ack the followers stay where they are."""
    head, *_ = bench.run("1", "2", "3")
    bench.end(head, Ack())
    bench.settling.collect()
    assert bench.pending() == [("1", "Ack")]


def test_a_refused_outcome_breaks_its_run(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """When the lease of one was lost, nothing else of its run starts, and a warning says LeaseLost."""
    head, second, third = bench.run("1", "2", "3")
    bench.end(head, Ack())
    bench.settling.collect()
    with caplog.at_level(logging.WARNING):
        bench.answer(False)
    assert "LeaseLost" in caplog.text
    assert not second.startable(0.0)
    assert not third.startable(0.0)
    assert bench.pending() == [("3", "Yield")]  # "2" is with the thread that went on with it, and will be refused there
    assert bench.stats.lost == 1
    assert bench.stats.succeeded == 0


def test_a_refused_hand_back_is_no_loss(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Followers that went back with their head answer False, and nobody is alarmed."""
    bench.settling.give_back([bench.job(), bench.job()])
    bench.answer(False, True)
    assert caplog.text == ""
    assert bench.stats.handed_back == 2
    assert bench.stats.lost == 0


def test_a_refusal_after_a_lost_answer_is_no_alarm(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An outcome that may have been applied the first time is not reported as a lost lease."""
    bench.end(bench.job(), Ack())
    bench.settling.collect()
    bench.settling.unanswered()
    with caplog.at_level(logging.WARNING):
        bench.answer(False)
    assert caplog.text == ""


def test_what_was_answered_leaves_the_ledger(bench: Bench) -> None:
    """Heartbeats stop for a job when its settle is answered, not before."""
    job = bench.job()
    bench.end(job, Ack())
    bench.settling.collect()
    assert job in bench.settling.ledger
    assert bench.settling.in_hand == 0
    bench.answer(True)
    assert job not in bench.settling.ledger


def test_a_job_lost_before_its_start_is_dropped(bench: Bench) -> None:
    """A delivery that the heartbeat found lost is not handed back: somebody else may have it."""
    job = bench.job()
    job.lost, job.usable_until = True, NEVER
    bench.desk.done(job, YIELD)
    bench.settling.collect()
    assert bench.pending() == []
    assert bench.settling.ledger == set()
    assert bench.stats.lost == 1


def test_the_late_result_of_a_given_up_job_is_dropped(bench: Bench) -> None:
    """What was given back at the end of grace is settled once."""
    job = bench.job("late")
    job.started = 1.0
    bench.settling.give_up([job])
    bench.end(job, Ack())
    bench.settling.collect()
    assert [name for name, _ in bench.pending()] == ["late"]


def test_every_kind_of_outcome_is_counted(bench: Bench) -> None:
    """The counters add up to what was settled."""
    for outcome in (Ack(), Retry(0), Defer(0), Dead("failed"), Dead("failed")):
        bench.end(bench.job(), outcome)
    bench.settling.collect()
    bench.settling.give_back([bench.job()])
    bench.answer(True, True, True, True, True, True)
    assert bench.stats == Stats(started=5, succeeded=1, failed=3, retried=1, deferred=1, dead=2, handed_back=1, lost=0)


def test_run_times_and_gaps_are_learned(bench: Bench) -> None:
    """The averages follow what handlers took and how close together they ended."""
    for at in (200.0, 200.002, 200.004):
        bench.end(bench.job(), Ack(), took=0.5, at=at)
        bench.settling.collect()
    assert bench.settling.run_time == pytest.approx(0.5)
    assert bench.settling.gap == pytest.approx(0.002)
    assert bench.settling.brisk == 0.0


def test_a_started_job_is_given_up_to_be_retried_at_once_or_dead_on_its_last_attempt() -> None:
    """The end of grace never gives a task one execution more than its budget."""
    early = job_of(delivery(attempt=2, max_attempts=3), SENT, RECEIVED)
    last = job_of(delivery(attempt=3, max_attempts=3), SENT, RECEIVED)
    assert given_up(early) == Retry(0, error="the worker stopped before the task had ended")
    assert given_up(last) == Dead("max_attempts", error="the worker stopped before the task had ended")


def test_a_lease_counts_from_the_sending_of_the_reserve() -> None:
    """A job is startable until its lease must be over, by our monotonic clock alone."""
    job = job_of(delivery(lease=30_000_000), SENT, RECEIVED)
    assert job.startable(SENT + 29.9)
    assert not job.startable(SENT + 30.0)


def test_an_expired_job_is_not_started() -> None:
    """``expires`` is judged by the store's clock at the claim and the time gone since, whatever our wall clock says."""
    job = job_of(delivery(expires_in=2_000_000), SENT, RECEIVED)
    assert job.startable(SENT + 1.9)
    assert not job.startable(SENT + 2.0)


def test_only_a_last_attempt_must_be_marked() -> None:
    """Nothing but the last attempt waits for the store before it starts."""
    assert job_of(delivery(attempt=2, max_attempts=3), SENT, RECEIVED).cleared
    assert not job_of(delivery(attempt=3, max_attempts=3), SENT, RECEIVED).cleared


def test_yield_is_one_value() -> None:
    """Handing back needs no object of its own for each task."""
    assert Yield() == YIELD
