"""What the memory store keeps: tasks, flows and queues, and the few moves that keep a queue's lines in order.

Everything here is plain bookkeeping under the store's one lock; the rules themselves are in ``taskmq.policy``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from sortedcontainers import SortedList

from taskmq.message import DEFAULT_RETENTION_BAD, DEFAULT_RETENTION_OK, Message
from taskmq.policy import claim, rate, turns
from taskmq.policy.limits import LOOK
from taskmq.policy.order import Key, sort_key
from taskmq.queue import QueueConfig, Rate
from taskmq.state import Attempt, Progress, TaskState
from taskmq.transport.memory.limits import Limits, Line
from taskmq.transport.memory.lines import Lines, Spec

BATCH = 200
"""Most tasks that one verb promotes, reaps, expires or returns in a queue."""


Turn = tuple[int, int, int, str]
"""A flow's place among those of its queue, and its code."""
T = TypeVar("T", Key, Turn)


class TaskRecord:
    """One task for its whole life. ``place`` says where it is now; ``state`` is what a user sees of an ended one."""

    __slots__ = (
        "attempt_log",
        "attempts",
        "available_at",
        "batch",
        "blamed",
        "cancel_requested",
        "created_at",
        "deadline_at",
        "delete_at",
        "epoch",
        "error",
        "expires_at",
        "expiries",
        "finished_at",
        "flow",
        "id",
        "lease_until",
        "limit",
        "message",
        "place",
        "position",
        "progress",
        "queue",
        "reason",
        "replays",
        "result",
        "retry_at",
        "run",
        "seq",
        "spec",
        "started",
        "started_at",
        "state",
        "traceback",
        "worker",
    )

    WAITING, DUE, PARKED, RUNNING, ENDED = range(5)

    def __init__(self, message: Message, queue: QueueRecord, seq: int, now: int) -> None:
        self.id = message.id
        self.message = message
        self.queue = queue
        self.seq = seq
        self.limit = message.limit
        self.spec = Spec(message.handler, message.version, message.limit is not None)
        self.created_at = now
        self.available_at = max(now, message.run_after.at(now)) if message.run_after else now
        self.expires_at = min(
            (moment.at(now) for moment in (message.expires, message.deadline) if moment is not None), default=None
        )
        self.deadline_at = message.deadline.at(now) if message.deadline else None
        self.flow: FlowRecord | None = None
        self.place = self.DUE
        self.state: TaskState | None = None
        self.epoch = self.attempts = self.blamed = self.expiries = self.replays = 0
        self.attempt_log: list[Attempt] = []
        self.retry_at: int | None = None
        self.lease_until = 0
        self.batch = self.position = 0
        self.run = False
        self.started = False
        self.started_at: int | None = None
        self.cancel_requested = False
        self.worker: str | None = None
        self.progress: Progress | None = None
        self.result: bytes | None = None
        self.reason: str | None = None
        self.error: str | None = None
        self.traceback: str | None = None
        self.finished_at: int | None = None
        self.delete_at: int | None = None

    @property
    def code(self) -> str:
        """The code of its flow; "" when it has no partition."""
        return self.message.partition.code if self.message.partition else claim.UNPARTITIONED

    def key(self) -> tuple[int, int, int]:
        """Where it stands in its line."""
        return sort_key(self.queue.aging_us, self.message.priority, self.available_at, self.seq)

    def retention(self, state: TaskState) -> int:
        """Microseconds to keep the record once it has ended."""
        if self.message.retention is not None:
            return self.message.retention
        return DEFAULT_RETENTION_OK if state is TaskState.SUCCEEDED else DEFAULT_RETENTION_BAD

    def ready_at(self) -> int:
        """Since when it may start."""
        return self.available_at if self.retry_at is None else self.retry_at

    def visible_state(self, now: int) -> TaskState:
        """The state that users see; a waiting task's depends only on the time, not on when a promoter ran."""
        if self.state is not None:
            return self.state
        if self.place == self.RUNNING:
            return TaskState.RUNNING
        if self.retry_at is not None and self.retry_at > now:
            return TaskState.RETRYING
        return TaskState.SCHEDULED if self.available_at > now else TaskState.QUEUED


class FlowRecord:
    """A partition with something in line, running, retrying or blocked; or the unpartitioned tasks of a queue."""

    __slots__ = (
        "aside",
        "blocked_seq",
        "blocked_until",
        "code",
        "held_by",
        "line",
        "live",
        "max_running",
        "ordered",
        "parked",
        "paused",
        "running",
        "tag",
        "turn",
        "weight",
    )

    def __init__(self, code: str) -> None:
        self.code = code
        self.ordered = code.startswith("!")
        self.weight = 1
        self.tag = 0
        self.max_running: int | None = None
        self.line: Lines[Key] = Lines()
        self.running: SortedList[Key] = SortedList()
        self.aside = 0
        """Its tasks that wait outside the line: for a retry, or parked."""
        self.parked: SortedList[Key] = SortedList()
        """Parked tasks of an ordered partition: nothing behind the first of them may start."""
        self.blocked_until: int | None = None
        self.blocked_seq = 0
        self.held_by: str | None = None
        self.paused = False
        self.live = False
        """Whether it has an eligible head, that is, whether it has joined."""
        self.turn: tuple[Turn, Spec] | None = None
        """Its entry in the queue's turns."""

    def eligible(self) -> bool:
        """Whether its head may be claimed now."""
        if self.stopped() or (self.ordered and self.running) or self.room() == 0:
            return False
        head = self.head()
        return head is not None and not (self.parked and self.parked[0] < head)

    def head(self) -> Key | None:
        """The first in line."""
        return next(self.line.walk(), None)

    def room(self) -> int | None:
        """How many more of its tasks may run; None: any number."""
        return None if self.max_running is None else max(0, self.max_running - len(self.running))

    def empty(self) -> bool:
        """Whether nothing keeps it: then it is forgotten, tag included."""
        return not (self.line or self.running or self.aside or self.stopped())

    def stopped(self) -> bool:
        """Whether something keeps all of its tasks from being claimed: a pause, a dead head, a delay."""
        return self.blocked_until is not None or self.held_by is not None or self.paused


class QueueRecord:
    """A queue: its settings, its flows, and what falls due in it."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self.config = QueueConfig()
        self.configured = False
        self.aging_us = 0
        self.paused = False
        self.served = 0.0
        self.v = 0
        self.j = 0
        self.running = 0
        self.limited = False
        """It has seen a task with a limit."""
        self.level: int | None = None
        """Of the rate's bucket (policy/rate.py) at ``level_at``; None: full."""
        self.level_at = 0
        self.plain = FlowRecord(claim.UNPARTITIONED)
        self.flows: dict[str, FlowRecord] = {}
        self.turns: Lines[Turn] = Lines()
        self._stopped: list[FlowRecord] = []
        self.tasks: dict[int, TaskRecord] = {}
        """Unfinished tasks by seq."""
        self.due: SortedList[tuple[int, int, str | None]] = SortedList()
        """(due time, seq, None for a task or the code of a blocked flow)."""
        self.leases: SortedList[tuple[int, int]] = SortedList()
        """(lease end, seq)."""
        self.expiring: SortedList[tuple[int, int]] = SortedList()
        """(expires at, seq) of waiting tasks."""

    def configure(self, config: QueueConfig) -> None:
        """Take over settings. A new rate starts with a full bucket."""
        if config.rate != self.config.rate:
            self.level = None
        self.config = config
        self.aging_us = config.aging_us
        self.paused = config.paused
        self.configured = True

    def settings(self) -> QueueConfig:
        """The settings as they stand, with an operator's pause."""
        return replace(self.config, paused=self.paused)

    # ── gates ──

    def room(self, now: int) -> int | None:
        """How many of its tasks may start now; None: any number."""
        rooms = []
        if self.config.max_running is not None:
            rooms.append(max(0, self.config.max_running - self.running))
        if self._rate is not None:
            rooms.append(rate.tokens(self._rate, rate.level_at(self._rate, self.level, self.level_at, now)))
        return min(rooms, default=None)

    def count_starts(self, started: int, now: int) -> None:
        """Take what these starts cost from the rate's bucket."""
        if self._rate is not None and started:
            level = rate.level_at(self._rate, self.level, self.level_at, now)
            self.level, self.level_at = rate.take(self._rate, level, started), now

    def next_start_at(self, now: int) -> int | None:
        """When the rate lets the next task start; None: now."""
        if self._rate is None:
            return None
        return rate.next_token_at(self._rate, rate.level_at(self._rate, self.level, self.level_at, now), now)

    @property
    def _rate(self) -> Rate | None:
        return self.config.rate if isinstance(self.config.rate, Rate) else None

    # ── flows ──

    def next_in_turn(self) -> Iterator[TaskRecord]:
        """For each priority the next unpartitioned task of each handler, and the next partition's head.

        An aging queue has one order for all priorities.
        """
        for line in self.plain.line.each():
            yield from (self.tasks[key[2]] for key in self._first_of_each_rank(line))
        for turn in self._first_of_each_rank(self.turns.walk()):
            yield self.head(self.flows[turn[-1]])

    def _first_of_each_rank(self, entries: Iterable[T]) -> Iterator[T]:
        ranks = set()
        for entry in entries:
            rank = 0 if self.aging_us else entry[0]
            if rank not in ranks:
                ranks.add(rank)
                yield entry

    def flow(self, code: str) -> FlowRecord:
        """The flow of this code, born if need be. The first partition makes the unpartitioned tasks a flow, too."""
        if code == claim.UNPARTITIONED:
            return self.plain
        flow = self.flows.get(code)
        if flow is None:
            if not self.flows:
                self.plain.live = bool(self.plain.line)
            flow = self.flows[code] = FlowRecord(code)
        return flow

    def place(self, flow: FlowRecord) -> None:
        """Bring a flow's standing up to date after any change: joined, moved, out, or forgotten."""
        eligible = flow.eligible()
        if eligible and not flow.live and self.flows and not self.aging_us:
            turns.join(self, flow)
        if flow.live and not eligible and not (flow.ordered and flow.running):
            self._stopped.append(flow)
        flow.live = eligible
        if flow is self.plain:
            return
        if flow.turn is not None:
            self.turns.remove(*flow.turn)
            flow.turn = None
        if eligible:
            flow.turn = self._turn(flow)
            self.turns.add(*flow.turn)
        elif flow.empty():
            del self.flows[flow.code]

    def _turn(self, flow: FlowRecord) -> tuple[Turn, Spec]:
        head = self.head(flow)
        first, second, third = head.key()
        return (first, second, third, flow.code) if self.aging_us else (first, flow.tag, 0, flow.code), head.spec

    def head(self, flow: FlowRecord) -> TaskRecord:
        """The first task of a line that is not empty."""
        return self.tasks[next(flow.line.walk())[2]]

    def look_for_missed(self) -> None:
        """At the end of a verb: flows that it stopped or filled cannot use the slots their first tasks stood for."""
        stopped, self._stopped = self._stopped, []
        for flow in stopped:
            for key in islice(flow.line.walk(), LOOK if self.limited and not flow.live else 0):
                self._missed(self.tasks[key[2]])

    def _missed(self, task: TaskRecord) -> None:
        """A task in line cannot take the slot of its limit that it stood for."""
        if task.limit is not None:
            self.limits.missed(self._parked_line(task))

    def _parked_line(self, task: TaskRecord) -> Line:
        assert task.limit is not None
        return Line(task.limit.key, task.limit.n, self.name, task.spec)

    # ── lines ──

    def enter(self, task: TaskRecord) -> None:
        """A task becomes claimable: it enters its line where its key puts it."""
        flow = task.flow = self.flow(task.code)
        partition = task.message.partition
        if partition is not None:
            flow.weight = flow.weight if partition.weight is None else partition.weight
            flow.max_running = flow.max_running if partition.max_running is None else partition.max_running
        self.limited |= task.limit is not None
        if task.limit is not None and not flow.ordered and self.limits.free(task.limit) <= 0:
            self.park(task)
        else:
            if flow.ordered and flow.live and task.key() < (head := self.head(flow)).key():
                self._missed(head)  # more urgent: the head waits behind it, and its slot is for others
            self.stand(task, flow)
        self.place(flow)

    def stand(self, task: TaskRecord, flow: FlowRecord) -> None:
        """Stand in line, without any change to the flow's standing yet."""
        task.flow = flow
        task.place = task.WAITING
        task.worker = task.started_at = None
        flow.line.add(task.key(), task.spec)
        self._watch_expiry(task)

    def wait_until(self, task: TaskRecord, due: int) -> None:
        """Wait outside the line."""
        task.place = task.DUE
        task.worker = task.started_at = None
        self.due.add((due, task.seq, None))
        self._watch_expiry(task)

    def park(self, task: TaskRecord) -> None:
        """Wait outside the line for a slot of its limit; an ordered partition waits with it."""
        flow = task.flow
        assert flow is not None
        task.place = task.PARKED
        task.worker = task.started_at = None
        flow.aside += 1
        if flow.ordered:
            flow.parked.add(task.key())
        self.limits.park(self._parked_line(task), task.key(), flow.code, flow.weight, turns=not self.aging_us)
        self._watch_expiry(task)

    def unpark(self, task: TaskRecord) -> None:
        """Wait for a slot no more."""
        flow = task.flow
        assert flow is not None
        flow.aside -= 1
        if flow.ordered:
            flow.parked.remove(task.key())
        self.limits.unpark(self._parked_line(task), task.seq)

    def return_parked(self, limit: int) -> int:
        """Put parked tasks that are owed a return back in their places, by their limits' keys; how many moved."""
        moved = 0
        for line in self.limits.owing(self.name):
            while moved < limit and (key := self.limits.first_owed(line)) is not None:
                task = self.tasks[key[2]]
                flow = task.flow
                assert flow is not None
                self.leave(task)
                self.stand(task, flow)
                self.place(flow)
                moved += 1
                # Where it cannot take the slot, the next one returns, too.
                if flow.live and not (flow.ordered and flow.head() != key):
                    self.limits.returned(line)
        return moved

    def block(self, flow: FlowRecord, until: int, seq: int) -> None:
        """Stop a flow until then; the later of two ends holds."""
        if flow.blocked_until is not None and flow.blocked_until >= until:
            return
        self.unblock(flow)
        flow.blocked_until, flow.blocked_seq = until, seq
        self.due.add((until, seq, flow.code))

    def unblock(self, flow: FlowRecord) -> None:
        """Free a blocked flow before its time."""
        if flow.blocked_until is not None:
            self.due.remove((flow.blocked_until, flow.blocked_seq, flow.code))
            flow.blocked_until = None

    def leave(self, task: TaskRecord) -> None:
        """Take a waiting task out of wherever it waits."""
        if task.expires_at is not None:
            self.expiring.remove((task.expires_at, task.seq))
        flow = task.flow
        if task.place == task.WAITING and flow is not None:
            flow.line.remove(task.key(), task.spec)
        elif task.place == task.PARKED:
            self.unpark(task)
        else:
            self.due.remove((task.retry_at if task.retry_at is not None else task.available_at, task.seq, None))
            if flow is not None:
                flow.aside -= 1

    def drop(self, task: TaskRecord) -> None:
        """Take a waiting task out for good: it is cancelled, expired or skipped."""
        stood, flow = task.place == task.WAITING, task.flow
        self.leave(task)
        if stood:
            self._missed(task)
        if flow is not None and flow.ordered and flow.blocked_until is not None and flow.blocked_seq == task.seq:
            self.unblock(flow)  # its delay ends with it

    def _watch_expiry(self, task: TaskRecord) -> None:
        if task.expires_at is not None:
            self.expiring.add((task.expires_at, task.seq))

    def runs_behind(self, task: TaskRecord) -> Iterator[TaskRecord]:
        """The running tasks of an ordered partition that stand behind this one, last first."""
        flow = task.flow
        if flow is not None and flow.ordered:
            for key in reversed(list(flow.running.irange(task.key(), inclusive=(False, False)))):
                yield self.tasks[key[2]]

    def promote(self, now: int, limit: int) -> int:
        """Let what is due by now enter its line or free its flow, in order of due time, then seq."""
        done = 0
        while self.due and self.due[0][0] <= now and done < limit:
            _, seq, code = self.due.pop(0)
            done += 1
            if code is None:
                task = self.tasks[seq]
                if task.expires_at is not None:
                    self.expiring.remove((task.expires_at, seq))
                if task.flow is not None:
                    task.flow.aside -= 1
                self.enter(task)
            else:
                flow = self.flows[code]
                flow.blocked_until = None
                self.place(flow)
        return done


__all__ = ["FlowRecord", "QueueRecord", "TaskRecord"]
