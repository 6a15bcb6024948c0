"""The permits example: the whole of it on its sample, and a verifier that is not fooled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.permits.journal import Entry, Journal, Reader
from examples.permits.report import short_codes
from examples.permits.verify import Event, fingerprint, handled_order, read_events, sequences, verify
from taskmq import TaskInfo, TaskState

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "examples/permits/sample.csv"
EVENTS = [
    Event(1, "a", "Desk", "open", "Ada"),
    Event(2, "b", "Post", "open", "Ada"),
    Event(3, "a", "Desk", "decide", "Bob"),
    Event(4, "a", "Desk", "send", "Bob"),
]
Entries = list[Entry]
Tasks = list[TaskInfo]


def entries(*words: str) -> Entries:
    """A journal: ``start 3`` or, of the second delivery, ``start 3 2``."""
    lines = []
    for at, word in enumerate(words):
        what, event, *epoch = word.split()
        lines.append(Entry(what, int(event), f"t{event}", int(*epoch or "1"), 7, at))  # type: ignore[arg-type]
    return lines


def task(event: int, epoch: int = 1) -> TaskInfo:
    """The record of an event that was handled."""
    return TaskInfo(
        id=f"t{event}",
        queue="permits",
        handler="handle",
        state=TaskState.SUCCEEDED,
        priority=0,
        seq=event,
        attempt=1,
        max_attempts=10,
        epoch=epoch,
        args=[event],
        result={"event": event, "epoch": epoch},
    )


GOOD = entries("start 1", "start 2", "done 2", "done 1", "start 3", "done 3", "start 4", "done 4")


def judged(journal: Entries, tasks: Tasks | None = None) -> str:
    return "\n".join(verify(EVENTS, journal, tasks or [task(event) for event in (1, 2, 3, 4)]))


def test_the_whole_example_on_its_sample(tmp_path: Path) -> None:
    """Two workers, one of them killed while at work: the script says ok, and its report says the same."""
    command = [sys.executable, "-m", "examples.permits", str(SAMPLE), "--out", str(tmp_path)]
    ran = subprocess.run(
        [*command, "--kills", "1", "--work", "40", "--timeout", "60"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "verdict     ok" in ran.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["events"], report["handled"], report["cases"], report["equal_sequences"]) == (55, 55, 12, 12)
    assert report["faults"] == []
    assert report["fingerprint_of_file"] == report["fingerprint_of_handled"]
    (kill,) = report["kills"]
    assert kill["held"] > 0
    assert report["handler_starts"] == 55 + report["repeated_by_kills"] + report["repeated_otherwise"]
    assert [waits["priority"] for waits in report["waits_by_priority"]] == [6, 3, 0]
    assert sum(report["events_by_resource"].values()) == 55
    check_page((tmp_path / "report.html").read_text(encoding="utf-8"))


def check_page(page: str) -> None:
    """Four charts, each of them well formed, and nothing that a browser would have to fetch."""
    charts = [f"<svg{part.partition('</svg>')[0]}</svg>" for part in page.split("<svg")[1:]]
    assert len(charts) == 4
    for chart in charts:
        ElementTree.fromstring(chart)
    for word in ("http:", "https:", "<script", "<link", "@import"):
        assert word not in page


def test_a_file_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    """A file without the columns is refused before anything is started."""
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    command = [sys.executable, "-m", "examples.permits", str(wrong), "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "is no file of events" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_store_of_one_process_is_refused(tmp_path: Path) -> None:
    """Two worker processes cannot meet in ``memory://``: the run says so instead of waiting for them."""
    command = [sys.executable, "-m", "examples.permits", "--url", "memory://", "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert "several processes cannot share memory://" in ran.stderr


def test_the_sample_is_what_the_example_says() -> None:
    """One channel a case, so that priority cannot reorder a case; and every channel has its priority."""
    events = read_events(SAMPLE)
    channels = {(event.case, event.channel) for event in events}
    assert len(channels) == len({event.case for event in events}) == 12
    assert {channel for _, channel in channels} == {"Desk", "Intern", "e-mail", "Internet", "Post"}


# ── the verifier ──


def test_a_good_run_has_no_faults() -> None:
    """Cases may interleave as they like."""
    assert judged(GOOD) == ""


def test_a_delivery_repeated_by_a_kill_is_no_fault() -> None:
    """A worker dies after its handler was done and before the store knew: the second delivery is what counts."""
    journal = entries(
        "start 1", "done 1", "start 3", "start 1 2", "done 1 2", "start 3 2", "done 3 2",
        "start 2", "done 2", "start 4", "done 4",
    )  # fmt: skip
    assert judged(journal, [task(1, 2), task(2), task(3, 2), task(4)]) == ""


def swapped() -> tuple[Entries, Tasks]:
    order = entries("start 1", "done 1", "start 4", "done 4", "start 3", "done 3", "start 2", "done 2")
    return order, [task(event) for event in (1, 2, 3, 4)]


def overlapping() -> tuple[Entries, Tasks]:
    order = entries("start 1", "start 3", "done 1", "done 3", "start 4", "done 4", "start 2", "done 2")
    return order, [task(event) for event in (1, 2, 3, 4)]


def missing_everywhere() -> tuple[Entries, Tasks]:
    return [entry for entry in GOOD if entry.event != 4], [task(event) for event in (1, 2, 3)]


def missing_in_the_journal() -> tuple[Entries, Tasks]:
    return [entry for entry in GOOD if entry.event != 4], [task(event) for event in (1, 2, 3, 4)]


def dead() -> tuple[Entries, Tasks]:
    failed = replace_task(task(4), state=TaskState.FAILED, result=None, reason="max_attempts")
    return GOOD, [task(1), task(2), task(3), failed]


def succeeded_twice() -> tuple[Entries, Tasks]:
    again = [replace(entry, task="other") for entry in GOOD if entry.event == 2]
    return GOOD + again, [*(task(event) for event in (1, 2, 3, 4)), replace_task(task(2), id="other")]


def started_after_its_success() -> tuple[Entries, Tasks]:
    return GOOD + entries("start 2 2", "done 2 2"), [task(event) for event in (1, 2, 3, 4)]


def same_delivery_twice() -> tuple[Entries, Tasks]:
    return GOOD + entries("start 2", "done 2"), [task(event) for event in (1, 2, 3, 4)]


def settled_by_nobody() -> tuple[Entries, Tasks]:
    return GOOD, [task(1), task(2, 5), task(3), task(4)]


def stranger() -> tuple[Entries, Tasks]:
    return GOOD + entries("start 9", "done 9"), [*(task(event) for event in (1, 2, 3, 4)), task(9)]


def replace_task(old: TaskInfo, **changes: object) -> TaskInfo:
    return TaskInfo(**{name: changes.get(name, getattr(old, name)) for name in TaskInfo.__struct_fields__})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (swapped, "a: handled 1, 4, 3, in the file 1, 3, 4"),
        (swapped, "a: event 4 was started before event 3 was done"),
        (overlapping, "a: event 3 was started before event 1 was done"),
        (missing_everywhere, "event 4 succeeded 0 times"),
        (missing_everywhere, "a: handled 1, 3, in the file 1, 3, 4"),
        (missing_in_the_journal, "event 4: delivery 1 counts, but no handler was done with it"),
        (dead, "event 4: its task t4 is FAILED (max_attempts)"),
        (succeeded_twice, "event 2 succeeded 2 times"),
        (started_after_its_success, "event 2: delivery 1 counts, but a handler was started for delivery 2"),
        (same_delivery_twice, "task t2: delivery 1 has 2 times a 'done'"),
        (settled_by_nobody, "event 2: delivery 5 counts, but no handler was done with it"),
        (stranger, "task t9 is for event 9, which is not in the file"),
    ],
)
def test_the_verifier_names_what_is_wrong(bad: Callable[[], tuple[Entries, Tasks]], told: str) -> None:
    """Each way in which a queue can break its promise is found, and told with the event or case it is about."""
    assert told in judged(*bad()).splitlines()


def test_the_fingerprint_tells_orders_apart() -> None:
    """It depends on the order within cases, and not on how cases interleave."""
    case_of = {event.event: event.case for event in EVENTS}
    activity_of = {event.event: event.activity for event in EVENTS}

    def of(*order: int) -> str:
        return fingerprint(sequences(order, case_of), activity_of)

    assert of(1, 2, 3, 4) == of(1, 3, 4, 2)
    assert of(1, 2, 3, 4) != of(1, 2, 4, 3)
    assert of(1, 2, 3, 4) != of(1, 2, 3)
    assert handled_order(GOOD) == [2, 1, 3, 4]


# ── the journal, the codes ──


def test_the_journal_is_read_as_it_grows(tmp_path: Path) -> None:
    """A reader gets every line once, and a line that is still being written not before it is whole."""
    journal, reader = Journal(tmp_path / "j"), Reader(tmp_path / "j")
    assert reader.read_on() == []
    journal.write("start", 1, "t1", 1)
    with (tmp_path / "j").open("ab") as file:
        file.write(b'{"what": "done", ')
        file.flush()
        assert [entry.what for entry in reader.read_on()] == ["start"]
        file.write(b'"event": 1, "task": "t1", "epoch": 1, "pid": 7, "at": 9}\n')
    assert [entry.what for entry in reader.read_on()] == ["done"]
    assert [entry.what for entry in reader.entries] == ["start", "done"]


def test_codes_are_short_and_different() -> None:
    """An activity's own code is kept, others get their initials, and no two are equal."""
    codes = short_codes(["T07-1 Draft advice", "T07-2 Draft advice", "Check report", "Close request"])
    assert codes["T07-1 Draft advice"] == "T07-1"
    assert codes["Check report"] == "CR"
    assert len(set(codes.values())) == 4
