"""What a running task says of its progress (base.py, Renewal; state.py, Progress)."""

from __future__ import annotations

from collections.abc import Callable

from taskmq.state import Progress, TaskState
from taskmq.testing.conformance.kit import Kit, needs

HALF = Progress(50, 100, "half")


def _say(kit: Kit, name: str, progress: Progress | None) -> None:
    assert kit.renew(name, started=True, progress=progress).lease_until is not None


def progress_is_shown_while_a_task_runs(kit: Kit) -> None:
    """The news of a heartbeat are seen with the task; without any there is none (base.py, Renewal)."""
    kit.publish("A")
    kit.claim()
    kit.start("A")
    assert kit.info("A").progress is None
    _say(kit, "A", HALF)
    assert kit.info("A").progress == HALF


def progress_stays_until_there_are_news(kit: Kit) -> None:
    """A renewal without news changes nothing; later news replace the earlier as a whole (base.py, Renewal)."""
    kit.publish("A")
    kit.claim()
    _say(kit, "A", HALF)
    _say(kit, "A", None)
    assert kit.info("A").progress == HALF
    _say(kit, "A", Progress(51))
    assert kit.info("A").progress == Progress(51)


def progress_keeps_what_was_said(kit: Kit) -> None:
    """Counts, fractions, an unknown total and a note of any text come back as they were said (state.py, Progress)."""
    said = [Progress(0), Progress(0.25, 1.0), Progress(2**53, 2**53), Progress(3, None, "é🙂'\"\\\n" * 36), Progress(7)]
    for number, progress in enumerate(said):
        kit.publish(f"T{number}")
        kit.claim()
        _say(kit, f"T{number}", progress)
    assert [kit.info(f"T{number}").progress for number in range(len(said))] == said


def progress_is_told_apart_in_one_call(kit: Kit) -> None:
    """Each task of one extend has its own news (base.py, Extend)."""
    kit.publish("A", "B", "C")
    kit.claim(3)
    _say(kit, "A", Progress(1))
    _say(kit, "C", Progress(3))
    assert [kit.info(name).progress for name in "ABC"] == [Progress(1), None, Progress(3)]


def progress_begins_anew_with_the_next_claim(kit: Kit) -> None:
    """The next execution starts without its predecessor's progress (state.py, TaskInfo)."""
    kit.publish("A", max_attempts=9)
    ways: list[Callable[[], object]] = [
        *(lambda: kit.retry("A"), lambda: kit.defer("A", 0), lambda: kit.hand_back("A"), kit.lose_leases),
    ]
    for back in ways:
        kit.claim()
        assert kit.info("A").progress is None
        _say(kit, "A", HALF)
        back()
    kit.claim()
    assert kit.info("A").progress is None


def progress_of_the_last_execution_stays_on_record(kit: Kit) -> None:
    """An ended task still shows what its last execution said of itself, however it ended (state.py, TaskInfo)."""

    def lose() -> None:
        kit.lose_leases()

    def stop() -> None:
        kit.cancel("A")
        kit.retry("A")

    ends: list[tuple[Callable[[], object], TaskState]] = [
        (lambda: kit.ack("A"), TaskState.SUCCEEDED),
        (lambda: kit.die("A"), TaskState.FAILED),
        (lose, TaskState.FAILED),
        (stop, TaskState.CANCELLED),
    ]
    for end, state in ends:
        kit.publish("A", max_attempts=1)
        kit.claim()
        _say(kit, "A", HALF)
        end()
        assert (kit.state("A"), kit.info("A").progress) == (state, HALF)


def progress_is_taken_from_the_holder_only(kit: Kit) -> None:
    """A stale worker's news change nothing (§1)."""
    kit.publish("A", max_attempts=9)
    kit.claim()
    stale = kit.delivery("A")
    kit.lose_leases()
    kit.claim()
    _say(kit, "A", Progress(1))
    assert kit.renew(stale, progress=HALF).lease_until is None
    assert kit.info("A").progress == Progress(1)


def progress_is_gone_after_a_replay(kit: Kit) -> None:
    """A replayed task starts its new life without the old one's progress (§2)."""
    kit.publish("A")
    kit.claim()
    _say(kit, "A", HALF)
    kit.die("A")
    kit.replay("A")
    assert kit.info("A").progress is None


def progress_starts_nothing(kit: Kit) -> None:
    """News alone do not mark a task started: that is said by itself (base.py, Renewal)."""
    kit.publish("A")
    kit.claim()
    kit.renew("A", started=False, progress=HALF)
    assert (kit.info("A").attempt, kit.info("A").started_at, kit.info("A").progress) == (0, None, HALF)


@needs("shared")
def progress_is_seen_by_everybody(kit: Kit) -> None:
    """Another process sees a task's progress at once (base.py, Inspect)."""
    other = kit.open()
    kit.publish("A")
    kit.claim()
    _say(kit, "A", HALF)
    (info,) = other.get([kit.id("A")])
    assert info is not None
    assert info.progress == HALF
