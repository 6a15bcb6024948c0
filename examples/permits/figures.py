"""The figures of a run: plain data for the JSON, the charts and the summary."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from examples.permits.journal import Entry
from examples.permits.rig import Kill, Run
from examples.permits.verify import Event, fingerprint, handled_order, sequences, verify

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the tasks of one priority waited from publish to their first start, in seconds."""

    priority: int
    channels: list[str]
    count: int
    shortest: float
    median: float
    p95: float
    longest: float


@dataclass(frozen=True, slots=True)
class KillEffect:
    """One kill and what it cost. ``held``: deliveries in the worker's hands, of which ``cut`` were being handled."""

    worker: str
    at: float
    held: int
    cut: int
    repeated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that is reported. Times are seconds from the start of the workers.

    ``repeated_by_kills``  handler starts for a task that a killed worker had started already · ``repeated_otherwise``
                           others: a lease that ran out because the machine was too busy
    """

    events: int
    handled: int
    cases: int
    seconds: float
    events_per_second: float
    handler_starts: int
    repeated_by_kills: int
    repeated_otherwise: int
    fingerprint_of_file: str
    fingerprint_of_handled: str
    equal_sequences: int
    faults: list[str]
    kills: list[KillEffect]
    waits_by_priority: list[Waits]
    events_by_resource: dict[str, int]
    handled_at: list[float]
    sequence_of_case: dict[str, list[str]]


def figures(events: Sequence[Event], run: Run, kills_wanted: int) -> Figures:
    """Judge a run and count."""
    case_of = {event.event: event.case for event in events}
    activity_of = {event.event: event.activity for event in events}
    order = handled_order(run.entries)
    expected, handled = sequences(case_of, case_of), sequences(order, case_of)
    firsts = _first(entry for entry in run.entries if entry.what == "done")
    seconds = (run.ended_at - run.started_at) / SECOND
    repeats = _repeats(run.entries)
    effects = [_effect(kill, run, repeats) for kill in run.kills]
    by_kills = sum(effect.repeated for effect in effects)
    return Figures(
        events=len(events),
        handled=len(order),
        cases=len(expected),
        seconds=round(seconds, 3),
        events_per_second=round(len(order) / seconds, 1),
        handler_starts=sum(entry.what == "start" for entry in run.entries),
        repeated_by_kills=by_kills,
        repeated_otherwise=len(repeats) - by_kills,
        fingerprint_of_file=fingerprint(expected, activity_of),
        fingerprint_of_handled=fingerprint(handled, activity_of),
        equal_sequences=sum(handled.get(case) == wanted for case, wanted in expected.items()),
        faults=[*verify(events, run.entries, run.tasks), *_faults_of_rig(run, effects, kills_wanted)],
        kills=effects,
        waits_by_priority=_waits(events, run),
        events_by_resource=_by_resource(events, order),
        handled_at=sorted(round((entry.at - run.started_at) / SECOND, 3) for entry in firsts.values()),
        sequence_of_case={case: [activity_of[event] for event in handled[case]] for case in sorted(handled)},
    )


def _faults_of_rig(run: Run, effects: Sequence[KillEffect], kills_wanted: int) -> list[str]:
    """A run that has not tested what it claims to test is no success."""
    faults = [f"worker {name} ended with code {code}" for name, code in run.exit_codes.items() if code]
    faults += [f"worker {effect.worker} was killed with nothing in hand" for effect in effects if not effect.held]
    if len(effects) != kills_wanted:
        faults.append(f"{len(effects)} kills instead of {kills_wanted}")
    return faults


def _first(entries: Iterable[Entry]) -> dict[int, Entry]:
    """The first of these entries for each event."""
    firsts: dict[int, Entry] = {}
    for entry in entries:
        firsts.setdefault(entry.event, entry)
    return firsts


def _repeats(entries: Iterable[Entry]) -> list[int]:
    """For each start of a task that had been started before: the process that had started it last."""
    last: dict[str, int] = {}
    repeats = []
    for entry in entries:
        if entry.what == "start":
            if entry.task in last:
                repeats.append(last[entry.task])
            last[entry.task] = entry.pid
    return repeats


def _effect(kill: Kill, run: Run, repeats: Sequence[int]) -> KillEffect:
    ours = Counter(entry.what for entry in run.entries if entry.pid == kill.pid)
    at = round((kill.at - run.started_at) / SECOND, 3)
    return KillEffect(kill.worker, at, kill.held, ours["start"] - ours["done"], repeats.count(kill.pid))


def _waits(events: Sequence[Event], run: Run) -> list[Waits]:
    started = _first(entry for entry in run.entries if entry.what == "start")
    channel_of = {event.event: event.channel for event in events}
    waits: dict[int, list[float]] = defaultdict(list)
    channels: dict[int, Counter[str]] = defaultdict(Counter)
    for task in run.tasks:
        event = task.args[0]
        if event in started and event in channel_of:
            waits[task.priority].append((started[event].at - task.created_at) / SECOND)
            channels[task.priority][channel_of[event]] += 1
    return [_waits_of(priority, waits[priority], channels[priority]) for priority in sorted(waits, reverse=True)]


def _waits_of(priority: int, waits: list[float], channels: Mapping[str, int]) -> Waits:
    waits.sort()
    cuts = statistics.quantiles(waits, n=20, method="inclusive") if len(waits) > 1 else waits * 19
    rounded = (round(value, 3) for value in (waits[0], cuts[9], cuts[18], waits[-1]))
    return Waits(priority, sorted(channels), len(waits), *rounded)


def _by_resource(events: Sequence[Event], order: Sequence[int]) -> dict[str, int]:
    resource_of = {event.event: event.resource for event in events}
    return dict(Counter(resource_of[event] for event in order if event in resource_of).most_common())
