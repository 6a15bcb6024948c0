"""The desk: who gets which job, in which order, and that nobody sleeps through it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from taskmq.message import Delivery
from taskmq.outcome import Ack, Retry
from taskmq.testing.signals import Record
from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Job, Run, job_of

_ids = count()


def delivery(priority: int = 0, *, name: str = "", aging: bool = False, attempt: int = 1) -> Delivery:
    return Delivery(
        id=name or f"t{next(_ids)}",
        queue="q",
        handler="h",
        body=b"{}",
        priority=priority,
        attempt=attempt,
        max_attempts=3,
        epoch=1,
        lease_until=30_000_000,
        lease=30_000_000,
        aging=aging,
    )


def job(priority: int = 0, *, claimed: float = 0.0, name: str = "", aging: bool = False) -> Job:
    return job_of(delivery(priority, name=name, aging=aging), claimed, claimed)


def run_of(*members: Job) -> Run:
    run = Run()
    for member in members:
        member.run = run
    run.rest.extend(members[1:])
    return run


def names(jobs: list[Job]) -> list[str]:
    return [job.delivery.id for job in jobs]


def taken(desk: Desk) -> Iterator[str]:
    while (found := desk.look()) is not None:
        yield found.delivery.id


def test_look_gives_the_most_urgent_job_and_among_equals_the_first() -> None:
    """A more urgent job overtakes held ones; equal ones keep their order."""
    desk = Desk(1)
    desk.put([job(0, name="a"), job(5, name="b"), job(0, name="c")], [], wake=0)
    desk.put([job(9, name="d"), job(5, name="e")], [], wake=0)
    assert list(taken(desk)) == ["d", "b", "e", "a", "c"]


def test_jobs_of_aging_queues_keep_claim_order() -> None:
    """A fresh priority 9 of an aging queue does not overtake an old priority 0 that was claimed before it."""
    desk = Desk(1)
    desk.put([job(0, name="old", aging=True), job(9, name="fresh", aging=True)], [], wake=0)
    desk.put([job(1, name="strict")], [], wake=0)
    assert list(taken(desk)) == ["strict", "old", "fresh"]


def test_cleared_jobs_go_before_all_others() -> None:
    """A job that is marked as started in the store is not kept waiting."""
    desk = Desk(1)
    desk.put([job(9, name="urgent")], [], wake=0)
    marked = job(0, name="marked")
    desk.let_go(marked)
    assert list(taken(desk)) == ["marked", "urgent"]


def test_a_gate_is_forgotten_when_it_is_opened() -> None:
    """A job whose mark is answered no longer holds its gate, which may hold the job: nothing would free the two."""
    desk = Desk(1)
    marked = job()
    gate = threading.Lock()
    gate.acquire()
    desk.send_mark(marked, gate)
    desk.let_go(desk.marks.popleft())
    assert not gate.locked()
    assert marked.gate is None


def test_take_back_returns_the_last_first() -> None:
    """What goes back goes from the tail: least urgent first, the latest first."""
    desk = Desk(1)
    desk.put([job(0, name="a"), job(5, name="b"), job(0, name="c"), job(5, name="d")], [], wake=0)
    assert names(desk.take_back()) == ["c", "a", "d", "b"]
    assert desk.held() == 0


def test_take_back_spares_the_bands_above() -> None:
    """Handing back one band leaves more urgent jobs where they are."""
    desk = Desk(1)
    desk.put([job(0, name="a"), job(5, name="b"), job(9, name="c")], [], wake=0)
    assert names(desk.take_back(first_band=4)) == ["a", "b"]
    assert list(taken(desk)) == ["c"]


def test_take_back_of_an_unstarted_run_is_last_first_with_its_head_at_the_end() -> None:
    """A run goes back as a whole, its tail first."""
    desk = Desk(1)
    members = [job(name="1"), job(name="2"), job(name="3")]
    desk.put([members[0], job(name="x")], [run_of(*members)], wake=0)
    assert desk.held() == 4
    assert names(desk.take_back()) == ["x", "3", "2", "1"]


def test_followers_go_back_by_their_own_clock() -> None:
    """Followers held too long go back although their head is running."""
    desk = Desk(1)
    members = [job(name="1", claimed=1.0), job(name="2", claimed=1.0), job(name="3", claimed=1.0)]
    desk.put([members[0]], [run_of(*members)], wake=0)
    assert desk.look() is members[0]
    assert desk.oldest_held() == 1.0
    assert desk.take_back_followers(claimed_before=1.0) == []
    assert names(desk.take_back_followers(claimed_before=1.1)) == ["3", "2"]
    assert desk.oldest_held() is None


def test_a_run_goes_on_with_its_next_after_an_ack() -> None:
    """After an Ack the same thread goes on with the next of the run."""
    desk = Desk(1)
    members = [job(name="1"), job(name="2")]
    desk.put([members[0]], [run_of(*members)], wake=0)
    head = desk.look()
    assert head is not None
    assert desk.done(head, Ack()) is members[1]
    assert desk.done(members[1], Ack()) is None
    assert names(list(desk.outcomes)) == ["1", "2"]


def test_a_run_stops_after_anything_but_an_ack() -> None:
    """After a retry nothing of the run is started."""
    desk = Desk(1)
    members = [job(name="1"), job(name="2")]
    desk.put([members[0]], [run_of(*members)], wake=0)
    head = desk.look()
    assert head is not None
    assert desk.done(head, Retry(0)) is None
    assert desk.look() is None
    assert names(desk.take_back_run(head)) == ["2"]


def test_a_more_urgent_job_goes_before_a_follower() -> None:
    """A follower that would be next makes way for a more urgent job, and is next after it."""
    desk = Desk(1)
    members = [job(3, name="1"), job(3, name="2")]
    desk.put([members[0], job(3, name="x")], [run_of(*members)], wake=0)
    head = desk.look()
    assert head is not None
    desk.put([job(4, name="urgent")], [], wake=0)
    assert desk.done(head, Ack()) is None
    assert list(taken(desk)) == ["urgent", "2", "x"]


def test_nothing_is_taken_from_a_closed_desk() -> None:
    """After closing, threads return and runs do not go on."""
    desk = Desk(1)
    own = threading.Lock()
    own.acquire()
    members = [job(name="1"), job(name="2")]
    desk.put([members[0], job()], [run_of(*members)], wake=0)
    head = desk.take(own)
    assert head is not None
    desk.close()
    assert desk.done(head, Ack()) is None
    assert desk.take(own) is None
    assert len(desk.take_back_all()) == 2


def test_close_releases_parked_threads() -> None:
    """A thread that waits for a job returns with None when the desk is closed."""
    desk = Desk(2)
    answers: Record[Job | None] = Record()

    def take() -> None:
        own = threading.Lock()
        own.acquire()
        answers.add(desk.take(own))

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    desk.close()
    for thread in threads:
        thread.join()
    assert answers.wait(2) == [None, None]


def test_sleep_ends_at_once_when_enough_outcomes_lie_there() -> None:
    """Outcomes that came before the sleep are not slept through."""
    desk = Desk(1)
    desk.done(job(), Ack())
    assert desk.sleep(1, None)


def test_sleep_ends_at_once_after_a_wake() -> None:
    """A wake that came before the sleep is not lost, and ends one sleep only."""
    desk = Desk(1)
    desk.wake()
    desk.wake()
    assert desk.sleep(1, None)
    assert not desk.sleep(1, 0.0)


def test_sleep_says_when_the_time_is_over() -> None:
    """A sleep without any event answers False."""
    assert not Desk(1).sleep(1, 0.001)


def test_an_eager_sleep_ends_when_a_thread_runs_out_of_jobs() -> None:
    """While the store may have more, a thread without a job does not wait until many outcomes have come together."""
    desk = Desk(1)
    own = threading.Lock()
    own.acquire()
    desk.put([job()], [], wake=0)

    def handle() -> None:
        while (found := desk.take(own)) is not None:
            desk.done(found, Ack())

    thread = threading.Thread(target=handle)
    thread.start()
    assert desk.sleep(100, 10.0, eager=True)
    assert len(desk.outcomes) == 1
    desk.close()
    thread.join()


@pytest.mark.parametrize("wake", [1, 8])
def test_no_wake_up_is_lost(wake: int) -> None:
    """Eight threads and one fetcher that hand over 20,000 jobs under constant switching never all sleep."""
    handlers, total, batch = 8, 20_000, 16
    desk = Desk(handlers)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def handle() -> None:
        own = threading.Lock()
        own.acquire()
        while (found := desk.take(own)) is not None:
            desk.done(found, Ack())

    threads = [threading.Thread(target=handle, daemon=True) for _ in range(handlers)]
    try:
        for thread in threads:
            thread.start()
        ended = 0
        while ended < total:
            desk.put([job() for _ in range(batch)], [], wake=wake)
            left = batch
            while left:
                # One at a time, so that threads park and are woken as often as can be.
                assert desk.sleep(1, 10.0), "everybody sleeps although there are jobs"
                while desk.outcomes:
                    desk.outcomes.popleft()
                    left -= 1
            ended += batch
    finally:
        sys.setswitchinterval(before)
        desk.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
