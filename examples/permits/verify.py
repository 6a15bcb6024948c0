"""Whether the queue has kept its promises, judged from three witnesses that do not know each other.

The *file* says what had to happen, the *journal* what handlers did, the *store* how each task ended. A handler may run
twice – its worker was killed before the store knew – so "exactly once" is about what counts: one task an event, settled
once, by a delivery whose handler is in the journal, and nothing of it started after that.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.permits.journal import Entry
from taskmq import TaskInfo, TaskState

Sequences = Mapping[str, Sequence[int]]
"""The events of each case, in order."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the file."""

    event: int
    case: str
    channel: str
    activity: str
    resource: str


def read_events(path: Path) -> list[Event]:
    """The file's events, in file order."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Event(int(row["event"]), row["case"], row["channel"], row["activity"], row["resource"])
            for row in csv.DictReader(file)
        ]


def sequences(events: Iterable[int], case_of: Mapping[int, str]) -> dict[str, list[int]]:
    """These events by case, in the given order; those that are in no case are left out."""
    cases: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event in case_of:
            cases[case_of[event]].append(event)
    return dict(cases)


def handled_order(entries: Iterable[Entry]) -> list[int]:
    """Each event once, in the order in which handlers were first done with them."""
    return list(dict.fromkeys(entry.event for entry in entries if entry.what == "done"))


def fingerprint(cases: Sequences, activity_of: Mapping[int, str]) -> str:
    """The md5 of a line ``case,activity,activity,…`` for each case, sorted by case."""
    lines = (",".join([case, *(activity_of[event] for event in cases[case])]) + "\n" for case in sorted(cases))
    return hashlib.md5("".join(lines).encode(), usedforsecurity=False).hexdigest()


def verify(events: Sequence[Event], entries: Sequence[Entry], tasks: Sequence[TaskInfo]) -> list[str]:
    """Everything that is wrong, in words; empty when every promise was kept."""
    case_of = {event.event: event.case for event in events}
    expected = sequences(case_of, case_of)
    return [
        *_wrong_tasks(case_of, tasks),
        *_wrong_deliveries(entries, tasks),
        *_wrong_sequences(expected, sequences(handled_order(entries), case_of)),
        *_early_starts(expected, case_of, entries),
    ]


def _wrong_tasks(case_of: Mapping[int, str], tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """One task for each event, and it has succeeded."""
    succeeded: dict[int, int] = defaultdict(int)
    for task in tasks:
        event = task.args[0]
        if event not in case_of:
            yield f"task {task.id} is for event {event}, which is not in the file"
        if task.state is TaskState.SUCCEEDED:
            succeeded[event] += 1
        else:
            yield f"event {event}: its task {task.id} is {task.state} ({task.reason or task.error or 'no reason'})"
    for event in case_of:
        if succeeded[event] != 1:
            yield f"event {event} succeeded {succeeded[event]} times"


def _wrong_deliveries(entries: Sequence[Entry], tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Each delivery starts and ends at most once; the one that counts is in the journal, and none comes after it."""
    lines: dict[tuple[str, int, str], int] = defaultdict(int)
    latest: dict[str, int] = defaultdict(int)
    for entry in entries:
        lines[entry.task, entry.epoch, entry.what] += 1
        latest[entry.task] = max(latest[entry.task], entry.epoch)
    for (task_id, epoch, what), count in lines.items():
        if count > 1:
            yield f"task {task_id}: delivery {epoch} has {count} times a {what!r}"
    for task in tasks:
        if task.state is TaskState.SUCCEEDED:
            yield from _wrong_result(task, lines, latest[task.id])


def _wrong_result(task: TaskInfo, lines: Mapping[tuple[str, int, str], int], latest: int) -> Iterator[str]:
    event, epoch = task.result["event"], task.result["epoch"]
    if event != task.args[0]:
        yield f"event {task.args[0]}: the result is that of event {event}"
    if (task.id, epoch, "done") not in lines:
        yield f"event {event}: delivery {epoch} counts, but no handler was done with it"
    if latest > epoch:
        yield f"event {event}: delivery {epoch} counts, but a handler was started for delivery {latest}"


def _wrong_sequences(expected: Sequences, handled: Sequences) -> Iterator[str]:
    for case, wanted in expected.items():
        got = handled.get(case, [])
        if got != wanted:
            yield f"{case}: handled {_shown(got)}, in the file {_shown(wanted)}"


def _early_starts(expected: Sequences, case_of: Mapping[int, str], entries: Iterable[Entry]) -> Iterator[str]:
    """Nothing of a case starts before everything before it is done."""
    place = {event: place for case in expected.values() for place, event in enumerate(case)}
    done: set[int] = set()
    finished: dict[str, int] = defaultdict(int)  # how many events of the case are done, from the first on
    for entry in entries:
        if entry.event not in case_of:
            continue
        case = case_of[entry.event]
        if entry.what == "done":
            done.add(entry.event)
            while finished[case] < len(expected[case]) and expected[case][finished[case]] in done:
                finished[case] += 1
        elif place[entry.event] > finished[case]:
            yield f"{case}: event {entry.event} was started before event {expected[case][finished[case]]} was done"


def _shown(events: Sequence[int]) -> str:
    return ", ".join(map(str, events)) or "nothing"
