"""What happened in a run of the shop: from the queue's own history and from what the recorder noted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from taskmq import App, TaskInfo, TaskState

Kind = Literal["photo", "order", "charge", "alert"]
KINDS: dict[str, Kind] = {"thumbnail": "photo", "process": "order", "charge": "charge", "alert": "alert"}
SECOND = 1e6
HELD = 2
"""Photos that a slot may still start when the alert is on its way: claimed before, they are not taken back."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One execution: which task, in which lane, from when to when (seconds), and how it ended."""

    task: str
    kind: Kind
    lane: int
    begin: float
    end: float
    label: str
    outcome: str


@dataclass(frozen=True)
class Story:
    """The facts, in seconds since the first publish. ``lanes`` are the workers' slots."""

    lanes: list[str]
    bars: list[Bar]
    published: Mapping[str, float]
    dead: list[str]
    succeeded: int

    def of(self, kind: Kind) -> list[Bar]:
        """The executions of one kind, by their begin."""
        return [bar for bar in self.bars if bar.kind == kind]

    @cached_property
    def end(self) -> float:
        return max(bar.end for bar in self.bars)

    @cached_property
    def alert(self) -> Bar:
        return self.of("alert")[0]

    @cached_property
    def alert_published(self) -> float:
        return self.published[self.alert.task]

    @cached_property
    def alert_wait(self) -> float:
        return self.alert.begin - self.alert_published

    @cached_property
    def overtaken(self) -> int:
        """Photos that were waiting when the alert was published."""
        return self.waiting(self.alert_published)

    def waiting(self, at: float) -> int:
        """Photos that were published and not started at this moment."""
        begins = {bar.task: bar.begin for bar in self.of("photo")}
        return sum(self.published[task] <= at < begin for task, begin in begins.items())

    def steps(self, order: str) -> list[Bar]:
        """The executions of one order's steps."""
        return [bar for bar in self.of("order") if bar.label.startswith(f"{order} ")]

    def lines(self) -> Iterator[str]:
        """The story in words."""
        photos, charges = self.of("photo"), self.of("charge")
        passed = self.waiting(self.alert.begin)
        tries = ", ".join(f"{bar.begin:.1f}" for bar in charges)
        yield f"flood     {len(photos)} photos were published at once and kept all {len(self.lanes)} slots busy"
        yield "ordered   the steps of orders A and B came behind them, yet did not wait for them all:"
        for order in ("A", "B"):
            names = " → ".join(bar.label.split()[1] for bar in self.steps(order))
            yield f"            order {order}: {names}, one at a time"
        yield f"urgent    the alert started {1000 * self.alert_wait:.0f} ms after it was published;"
        yield f"            {self.overtaken} photos were waiting then, and {passed} of them started after it"
        yield f"failing   the card was tried {len(charges)} times, at {tries} s, and is now a dead letter"
        yield f"in all    {self.succeeded} tasks succeeded, {len(self.dead)} is dead, in {self.end:.1f} s"
        yield from (f"FAULT     {fault}" for fault in self.faults)

    @cached_property
    def faults(self) -> list[str]:
        """What did not go as promised; empty when all is well."""
        faults = self._faults_of_orders()
        if self.waiting(self.alert.begin) < self.overtaken - HELD * len(self.lanes):
            faults.append("the alert had to wait for photos that no worker had taken yet")
        if [bar.outcome for bar in self.of("charge")] != ["retry", "retry", "dead"] or len(self.dead) != 1:
            faults.append("the card was not tried three times and then given up")
        return faults

    def _faults_of_orders(self) -> list[str]:
        faults = []
        for order in ("A", "B"):
            steps = self.steps(order)
            if [bar.label.split()[1] for bar in steps] != ["check", "pack", "label", "weigh", "send"]:
                faults.append(f"order {order} was not handled in order")
            if any(later.begin < earlier.end for earlier, later in pairwise(steps)):
                faults.append(f"two steps of order {order} ran at once")
        return faults


def read_story(app: App, record: Path, pids: Mapping[int, str], slots: int) -> Story:
    """The story of a finished run; ``pids`` names the workers' processes."""
    tasks = {task.id: task for task in app.tasks(queue="shop")}
    began = min(task.created_at for task in tasks.values())
    lines = [json.loads(line) for line in record.read_text(encoding="ascii").splitlines()]
    places = _places(lines, pids, slots)
    return Story(
        lanes=[f"worker {name}, slot {slot}" for name in pids.values() for slot in range(1, slots + 1)],
        bars=sorted(_bars(lines, tasks, places, began), key=lambda bar: bar.begin),
        published={task.id: (task.created_at - began) / SECOND for task in tasks.values()},
        dead=[task.id for task in app.dead_letters("shop").list()],
        succeeded=sum(task.state is TaskState.SUCCEEDED for task in tasks.values()),
    )


def _places(lines: list[dict[str, Any]], pids: Mapping[int, str], slots: int) -> dict[tuple[int, int], int]:
    """The lane of each handler thread, in the order in which the threads of a worker came to work."""
    threads: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if line["thread"] not in threads[line["pid"]]:
            threads[line["pid"]].append(line["thread"])
    return {
        (pid, thread): slots * worker + place
        for worker, pid in enumerate(pids)
        for place, thread in enumerate(threads[pid])
    }


def _bars(
    lines: list[dict[str, Any]], tasks: Mapping[str, TaskInfo], places: Mapping[tuple[int, int], int], began: int
) -> Iterator[Bar]:
    running: dict[tuple[str, int], float] = {}
    for line in lines:
        task, at = tasks[line["task"]], (line["at"] - began) / SECOND
        if line["what"] == "start":
            running[task.id, line["attempt"]] = at
        else:
            lane = places[line["pid"], line["thread"]]
            begin = running.pop((task.id, line["attempt"]))
            yield Bar(task.id, _kind(task), lane, begin, at, _label(task, line["attempt"]), line["what"])


def _kind(task: TaskInfo) -> Kind:
    return KINDS[task.handler.rpartition(".")[2]]


def _label(task: TaskInfo, attempt: int) -> str:
    match _kind(task):
        case "order":
            return " ".join(task.args)
        case "charge":
            return str(attempt)
        case "alert":
            return "alert"
        case _:
            return ""
