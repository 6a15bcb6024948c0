"""The store as operators see it.

Reads are plain commands: a task is one record, so it is always whole, and a listing may be a moment old anyway.

A listing shows the newest first, and nothing keeps all tasks in that order: an index over all of them would cost 144
bytes a task for the sake of a page that people look at now and then. So ``find`` collects the ids from the structures
that the conditions leave – a queue's, a partition's, a state's – and reads records, newest first, until the page is
full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from taskmq.clock import Clock
from taskmq.queue import QueueConfig
from taskmq.state import TaskInfo, TaskState
from taskmq.transport.base import Find, Finding, Found, LimitInfo, PartitionInfo, QueueStats, WorkerInfo
from taskmq.transport.redis import records
from taskmq.transport.redis.exchange import Command
from taskmq.transport.redis.keys import WORKERS, Keys, namespaced
from taskmq.transport.redis.records import Record
from taskmq.transport.redis.runner import Runner
from taskmq.transport.redis.scripts import Call, Script, script
from taskmq.transport.redis.watching import Watching

PAGE = 1000
"""How much is read in one exchange."""

_ID = 11
"""Where the id begins in what lines and sets know of a task."""
_HAND = 23
"""What stands before that in a lease."""
_WAITING = (TaskState.QUEUED, TaskState.RETRYING, TaskState.SCHEDULED)

CANCEL, REPLAY, PURGE = script("cancel"), script("replay"), script("purge")
STATS, PARTITION, CONFIGURE = script("stats"), script("partition"), script("configure")
DELETE_QUEUE, WORKER = script("delete_queue"), script("worker")


class RedisInspect:
    """``Inspect`` over the keys.

    A *home* is where keys live that one script can reach: a queue of a cluster, and on a single server everything,
    which is the home "".
    """

    def __init__(self, runner: Runner, namespace: str, clock: Clock | None) -> None:
        self._runner = runner
        self._prefix = namespaced(runner.settings.prefix, namespace)
        self._keys = Keys(self._prefix)
        self._clock = clock
        self._watching = Watching(runner)
        self._seen: dict[tuple[str, ...], str] = {}
        """Sets of many queues that were claimed from, so that each of those queues is there."""

    # ── how scripts are called ──

    def _call(self, which: Script, *args: Any, home: str) -> Call:
        now = 0 if self._clock is None else self._clock.now()
        return Call(which, [self._prefix, now, *args], self._at(home).declared, home)

    def _run(self, which: Script, *args: Any, home: str, again: bool = False) -> Any:
        return self._replies([self._call(which, *args, home=home)], again=again)[0]

    def _replies(self, calls: Sequence[Call], *, again: bool = False) -> list[Any]:
        """The replies of scripts."""
        return self._runner.scripts(calls, again=again)

    # ── homes ──

    def _home(self, queue: str) -> str:
        """The home of a queue."""
        return ""

    def _at(self, home: str) -> Keys:
        """The keys of a home."""
        return self._keys

    def _other_home(self, name: str) -> str:
        """The home of what is no queue's."""
        return ""

    def _homes(self) -> list[str]:
        """All homes."""
        return [""]

    def _homes_of(self, task_ids: Sequence[str]) -> list[str | None]:
        """The homes of tasks; None: there is no such task."""
        return [""] * len(task_ids)

    def _by_home(self, task_ids: Sequence[str]) -> dict[str, list[int]]:
        """Which of these ids belong to which home, by their positions."""
        found: dict[str, list[int]] = {}
        for at, home in enumerate(self._homes_of(task_ids)):
            if home is not None:
                found.setdefault(home, []).append(at)
        return found

    def _each_home(
        self, which: Script, first: Sequence[Any], task_ids: Sequence[str], missing: Any, *, again: bool = False
    ) -> list[Any]:
        """Run a script with the ids of each home; its reply has an item for each."""
        by_home = self._by_home(task_ids)
        calls = [self._call(which, *first, *(task_ids[i] for i in at), home=home) for home, at in by_home.items()]
        answers = [missing] * len(task_ids)
        for at, reply in zip(by_home.values(), self._replies(calls, again=again), strict=True):
            for i, answer in zip(at, reply, strict=True):
                answers[i] = answer
        return answers

    def _commands(self, commands: Sequence[Any]) -> list[Any]:
        """Replies of reading commands, in as many exchanges as are good."""
        replies: list[Any] = []
        for at in range(0, len(commands), PAGE):
            replies += self._runner.commands(commands[at : at + PAGE])
        return replies

    # ── tasks ──

    def get(self, task_ids: Sequence[str]) -> list[TaskInfo | None]:
        """The tasks of these ids."""
        stored = self._records(task_ids)
        return self._infos(task_ids, stored, self.now())

    def _records(self, task_ids: Sequence[str]) -> list[Record | None]:
        found: list[Record | None] = [None] * len(task_ids)
        for home, positions in self._by_home(task_ids).items():
            keys = self._at(home)
            for at in range(0, len(positions), PAGE):
                page = positions[at : at + PAGE]
                texts = self._runner.command("MGET", *(keys.task(task_ids[i]) for i in page))
                for i, text in zip(page, texts, strict=True):
                    found[i] = None if text is None else Record(text)
        if not task_ids:
            self._runner.command("PING")
        return found

    def _infos(self, task_ids: Sequence[str], stored: Sequence[Record | None], now: int) -> list[TaskInfo | None]:
        queue_of = {i: record.queue for i, record in enumerate(stored) if record is not None}
        confs = self._configs(sorted(set(queue_of.values())))
        tried = [i for i, record in enumerate(stored) if record is not None and record.head[1] != "0"]
        logs = self._commands([("GET", self._at_queue(queue_of[i]).log(task_ids[i])) for i in tried])
        log_of = dict(zip(tried, logs, strict=True))
        return [
            None if record is None else record.info(task_ids[i], log_of.get(i), confs[record.queue].aging_us, now)
            for i, record in enumerate(stored)
        ]

    def _at_queue(self, queue: str) -> Keys:
        return self._at(self._home(queue))

    def _configs(self, queues: Sequence[str]) -> dict[str, QueueConfig]:
        if not queues:
            return {}
        texts = self._commands([("GET", self._at_queue(queue).of_queue("conf", queue)) for queue in queues])
        return {queue: records.config(text or b"") for queue, text in zip(queues, texts, strict=True)}

    def find(self, params: Find) -> Found:
        """One page of tasks, newest first."""
        now = self.now()
        ids = sorted({i for i in self._candidates(params) if params.after is None or i < params.after}, reverse=True)
        matching: list[tuple[str, Record]] = []
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            for task_id, record in zip(page, self._records(page), strict=True):
                if record is not None and _matches(record, params, now):
                    matching.append((task_id, record))
            if len(matching) > params.limit:
                break
        shown = matching[: params.limit]
        infos = [info for info in self._infos([i for i, _ in shown], [r for _, r in shown], now) if info]
        return Found(tasks=infos, cursor=infos[-1].id if infos and len(matching) > params.limit else None)

    def _candidates(self, params: Find) -> Iterator[str]:
        """Ids of all tasks that may match; one may come twice, because it moves meanwhile."""
        queues = self._queues() if params.queue is None else [params.queue]
        states = set(params.states or TaskState)
        for queue in queues:
            keys = self._at_queue(queue)
            if states & set(_WAITING):
                for what in ("delayed", "retries"):
                    yield from self._members(keys.of_queue(what, queue))
                yield from self._in_line(queue, params.partition)
            if TaskState.RUNNING in states:
                yield from self._members(keys.of_queue("leases", queue), _HAND + _ID)
            if states & set(records.LETTER_OF):
                what = "dead" if states & set(records.LETTER_OF) == {TaskState.FAILED} else "done"
                yield from self._members(keys.of_queue(what, queue), 0)

    def _in_line(self, queue: str, partition: str | None) -> Iterator[str]:
        """What stands in lines, or is parked."""
        keys = self._at_queue(queue)
        if partition is None:
            for spec in range(1, self._specs(queue) + 1):
                yield from self._members(keys.of_spec("line", spec, queue))
        codes = [partition.encode()] if partition is not None else sorted(self._codes(queue, self._flows(queue)))
        for at in range(0, len(codes), PAGE):
            lines = [("ZRANGE", keys.partition(queue, code), 0, -1) for code in codes[at : at + PAGE]]
            for members in self._runner.commands(lines):
                yield from (member[_ID:].decode() for member in members)
        for key in self._runner.command("ZRANGE", keys.limits, 0, -1):
            for name, spec, n, _ in _parked_lines(self._runner.command("GET", keys.limit(key))):
                if name == queue:
                    yield from self._members(keys.parked(queue, spec, n, key))

    def _members(self, key: bytes, start: int = _ID) -> Iterator[str]:
        """The ids in a set, page by page."""
        at = 0
        while True:
            members = self._runner.command("ZRANGE", key, at, at + 10 * PAGE - 1)
            yield from (member[start:].decode() for member in members)
            if len(members) < 10 * PAGE:
                return
            at += len(members)

    def cancel(self, task_ids: Sequence[str]) -> list[TaskState | None]:
        """Cancel what waits, ask what runs to stop."""
        if not task_ids:
            return []
        letters = [letter.decode() for letter in self._each_home(CANCEL, (), task_ids, b"")]
        return [None if not letter else records.ENDED.get(letter, TaskState.RUNNING) for letter in letters]

    def replay(self, task_ids: Sequence[str], queue: str | None = None) -> list[bool]:
        """Queue dead letters again with a new budget and a new place."""
        return [answer == 49 for answer in self._each_home(REPLAY, (queue or "",), task_ids, 48)]

    def purge(self, task_ids: Sequence[str]) -> int:
        """Delete ended tasks' records now."""
        ids = list(dict.fromkeys(task_ids))
        calls = [self._call(PURGE, *(ids[i] for i in at), home=home) for home, at in self._by_home(ids).items()]
        return sum(map(int, self._replies(calls, again=True)))

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task has ended or is gone."""
        (home,) = self._homes_of([task_id])
        return home is None or self._watching.watch(self._at(home).task(task_id), timeout, _has_ended)

    # ── queues ──

    def _queues(self) -> list[str]:
        return [name.decode() for name in self._runner.command("ZRANGE", self._keys.queues, 0, -1)]

    def stats(self, queues: Sequence[str] = ()) -> list[QueueStats]:
        """The named queues, or all."""
        names = sorted(queues or self._queues())
        if not names:
            self._runner.command("PING")
        now = self.now()
        answers = self._replies([self._call(STATS, name, home=self._home(name)) for name in names], again=True)
        return [_stats(name, answer, now) for name, answer in zip(names, answers, strict=True) if answer]

    def change_queue(self, queue: str, changes: Mapping[str, Any]) -> QueueConfig:
        """Change some of a queue's settings; where somebody else was quicker, on top of what he made of them."""
        home = self._home(queue)
        while True:
            stored = self._runner.command("GET", self._at_queue(queue).of_queue("conf", queue)) or b""
            conf = replace(records.config(stored), **changes)
            if self._run(CONFIGURE, "change", queue, records.conf(conf), stored, home=home, again=True) == [b"1"]:
                return conf

    def pause_queue(self, queue: str, paused: bool) -> None:
        """Stop or resume claims from a queue."""
        self._run(CONFIGURE, "pause" if paused else "resume", queue, "", home=self._home(queue), again=True)

    def delete_queue(self, queue: str) -> bool:
        """Forget a queue that has no unfinished tasks."""
        self._seen.clear()
        while True:
            answer = self._run(DELETE_QUEUE, queue, home=self._home(queue), again=True)
            if answer != 1:
                return bool(answer)

    # ── partitions ──

    def _specs(self, queue: str) -> int:
        """How many specs a queue has seen."""
        state = self._runner.command("GET", self._at_queue(queue).of_queue("state", queue))
        return len(state.rpartition(b",")[2]) if state else 0

    def _flows(self, queue: str) -> dict[bytes, list[str]]:
        """The partitions about which something is stored."""
        texts = self._runner.command("HGETALL", self._at_queue(queue).of_queue("flows", queue))
        return {code: text.decode().split(";", 3) for code, text in zip(texts[::2], texts[1::2], strict=True)}

    def _codes(self, queue: str, flows: Iterable[bytes]) -> set[bytes]:
        """The codes of all partitions of a queue."""
        codes, keys = set(flows), self._at_queue(queue)
        aging = self._configs([queue])[queue].aging_us > 0
        for spec in range(1, self._specs(queue) + 1):
            turns = self._runner.command("ZRANGE", keys.of_spec("turns", spec, queue), 0, -1)
            codes.update(turn[9:] if aging else turn for turn in turns)
        return codes

    def partitions(self, queue: str, codes: Sequence[str] = (), *, stopped: bool = False) -> list[PartitionInfo]:
        """The live partitions of a queue, or those of these codes."""
        keys = self._at_queue(queue)
        if codes:
            wanted = sorted(set(codes))
            texts = self._runner.command("HMGET", keys.of_queue("flows", queue), *wanted)
            flows = {
                code.encode(): text.decode().split(";", 3) for code, text in zip(wanted, texts, strict=True) if text
            }
            names = [code.encode() for code in wanted]
        else:
            flows = self._flows(queue)
            names = sorted(flows if stopped else self._codes(queue, flows))
        lengths = self._commands([("ZCARD", keys.partition(queue, code)) for code in names])
        infos = [
            self._partition(queue, code, length, flows.get(code))
            for code, length in zip(names, lengths, strict=True)
            if length or code in flows
        ]
        return [info for info in infos if not stopped or info.blocked_until or info.paused or info.held_by]

    def _partition(self, queue: str, code: bytes, waiting: int, flow: list[str] | None) -> PartitionInfo:
        name = code.decode()
        ordered = name.startswith("!")
        if flow is None:
            return PartitionInfo(queue=queue, code=name, ordered=ordered, weight=1, waiting=waiting, running=0)
        numbers, held_by, _, run = flow
        _, _, weight, most, aside, blocked, _, paused, running = numbers.split(",")
        worker = None
        if run:
            (record,) = self._records([run.split(" ", 2)[1][_ID:]])
            worker = None if record is None else msgspec.json.decode(record.worker.split(",", 1)[1], type=str)
        return PartitionInfo(
            queue=queue,
            code=name,
            ordered=ordered,
            weight=int(weight),
            waiting=waiting + int(aside),
            running=int(running),
            max_running=int(most) if most else None,
            blocked_until=int(blocked) if blocked else None,
            paused=paused == "1",
            held_by=held_by or None,
            worker=worker,
        )

    def pause_partition(self, queue: str, code: str, paused: bool) -> None:
        """Stop or resume claims from a partition."""
        self._run(PARTITION, "pause" if paused else "resume", queue, code, home=self._home(queue), again=True)

    def release_partition(self, queue: str, code: str) -> bool:
        """Try the dead head of a held partition again."""
        return bool(self._run(PARTITION, "release", queue, code, home=self._home(queue)))

    def skip_head(self, queue: str, code: str) -> bool:
        """Let an ordered partition go on without its head."""
        return bool(self._run(PARTITION, "skip", queue, code, home=self._home(queue)))

    # ── the rest ──

    def limits(self, keys: Sequence[str] = ()) -> list[LimitInfo]:
        """The concurrency limits that have tasks running or parked."""
        found: dict[bytes, LimitInfo] = {}
        for home in self._homes():
            at = self._at(home)
            wanted: list[bytes] = (
                [key.encode() for key in set(keys)] if keys else self._runner.command("ZRANGE", at.limits, 0, -1)
            )
            for key, text in zip(wanted, self._commands([("GET", at.limit(key)) for key in wanted]), strict=True):
                if text:
                    other = found.get(key)
                    found[key] = LimitInfo(
                        key=key.decode(),
                        running=int(text.partition(b"\n")[0]) + (other.running if other else 0),
                        parked=sum(parked for *_, parked in _parked_lines(text)) + (other.parked if other else 0),
                    )
        return [found[key] for key in sorted(found)]

    def workers(self) -> list[WorkerInfo]:
        """The live workers."""
        rows = self._run(WORKER, "list", home=self._other_home(WORKERS), again=True)
        found = [
            replace(msgspec.json.decode(row, type=WorkerInfo), seen_at=int(seen))
            for seen, row in zip(rows[::2], rows[1::2], strict=True)
        ]
        return sorted(found, key=lambda worker: worker.id)

    def now(self) -> int:
        """The store's clock."""
        if self._clock is not None:
            return self._clock.now()
        seconds, micros = self._runner.command("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def checkup(self) -> list[Finding]:
        """What is wrong with the server's settings."""
        return self._runner.checkup()

    def flush(self) -> None:
        """Delete everything of this namespace, and nothing else."""
        self._seen.clear()
        cursor = b"0"
        while True:
            cursor, keys = self._runner.command(*self._scan(cursor))
            if mine := [key for key in keys if self._keys.is_own(key)]:
                self._runner.command("UNLINK", *mine)
            if cursor == b"0":
                return

    def _scan(self, cursor: bytes) -> Command:
        """The command that finds keys of this prefix."""
        prefix = self._prefix.encode()
        pattern = b"".join(b"\\" + bytes((c,)) if c in b"\\*?[]^-" else bytes((c,)) for c in prefix) + b"*"
        return "SCAN", cursor, "MATCH", pattern, "COUNT", PAGE


def _has_ended(letter: bytes) -> bool:
    """Whether a record's first letter, or none, is that of a task that has ended."""
    return not letter or letter.decode() in records.ENDED


def _matches(record: Record, params: Find, now: int) -> bool:
    texts = record.texts
    return (
        (params.queue is None or record.queue == params.queue)
        and (not params.states or record.visible_state(now) in params.states)
        and (params.handler is None or texts[b"h"] == params.handler)
        and (params.partition is None or texts.get(b"p", "") == params.partition)
        and (params.tag is None or params.tag in msgspec.json.decode(texts.get(b"g", "[]")))
    )


def _parked_lines(text: bytes | None) -> Iterator[tuple[str, int, int, int]]:
    """Queue, spec, n and how many are parked, of each of a limit's lines (lua/include/limits.lua)."""
    for line in (text or b"").split(b"\n")[1:-1]:
        queue, spec, n, parked, *_ = line.split(b"\t")
        yield queue.decode(), int(spec), int(n), int(parked)


def _stats(name: str, answer: Sequence[Any], now: int) -> QueueStats:
    conf, numbers, scheduled, running, retrying, dead, oldest, due, counts, specs = answer
    served, flows, next_start = numbers.decode().split(",")
    count = dict(zip((field.decode() for field in counts[::2]), map(int, counts[1::2]), strict=True))
    by_priority = {p: count.get(f"r{p}", 0) + int(more) for p, more in enumerate(due.split(b","))}
    by_handler: dict[str, int] = {}
    for spec, number in zip(specs[::2], specs[1::2], strict=True):
        handler = spec.partition(b"\0")[0].decode()
        by_handler[handler] = by_handler.get(handler, 0) + count.get(f"h{int(number)}", 0)
    unfinished = sum(number for field, number in count.items() if field[0] == "h")
    return QueueStats(
        name=name,
        config=records.config(conf),
        scheduled=scheduled,
        ready=unfinished - scheduled - running - retrying,
        running=running,
        retrying=retrying,
        dead=dead,
        by_priority={p: n for p, n in sorted(by_priority.items(), reverse=True) if n},
        by_handler={handler: n for handler, n in sorted(by_handler.items()) if n},
        partitions=int(flows),
        oldest_ready_age=None if not oldest else now - int(oldest),
        served=float(served),
        next_start_at=int(next_start) if next_start else None,
    )
