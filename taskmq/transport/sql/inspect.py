"""The SQL store as operators see it. Reads come from a reading connection; changes are transactions like all others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from taskmq import codec
from taskmq.clock import Clock
from taskmq.queue import Limit, QueueConfig
from taskmq.state import Progress, TaskInfo, TaskState
from taskmq.transport.attempts import decode_log
from taskmq.transport.base import Find, Finding, Found, LimitInfo, PartitionInfo, QueueStats, WorkerInfo
from taskmq.transport.sql import control
from taskmq.transport.sql.codes import ENDED, PARKED, RUNNING
from taskmq.transport.sql.engine import Engine

DAMAGED = "its stored arguments are damaged"
T = TypeVar("T")
_decode_kwargs = msgspec.json.Decoder(dict[str, Any]).decode
_decode_tags = msgspec.json.Decoder(list[str]).decode
_decode_worker = msgspec.json.Decoder(WorkerInfo).decode
_decode_progress = msgspec.json.Decoder(Progress).decode


def _decode_any(text: str | bytes | msgspec.Raw) -> Any:
    """JSON with every digit: msgspec counts the sign of an integer among the 4,300 digits that it takes."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(bytes(text) if isinstance(text, msgspec.Raw) else text)


def _decode_args(text: msgspec.Raw) -> list[Any]:
    args = _decode_any(text)
    if not isinstance(args, list):
        raise ValueError("the arguments are not a list")
    return args


class SqlInspect:
    """``Inspect`` over the tables."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        """``clock`` overrides the store's clock in tests."""
        self._engine = engine
        self._clock = clock or engine.clock
        self.name = engine.name
        self.capabilities = engine.capabilities

    def get(self, task_ids: Sequence[str]) -> list[TaskInfo | None]:
        """The tasks of these ids."""
        rows = self._engine.read(lambda queries: queries.by_id(task_ids))
        now = self._clock.now()
        infos = {row["id"]: task_info(row, now) for row in rows}
        return [infos.get(task_id) for task_id in task_ids]

    def find(self, params: Find) -> Found:
        """One page of tasks, newest first."""
        now = self._clock.now()
        rows = self._engine.read(lambda queries: queries.find(params, now))
        infos = [task_info(row, now) for row in rows[: params.limit]]
        return Found(tasks=infos, cursor=infos[-1].id if len(rows) > params.limit else None)

    def cancel(self, task_ids: Sequence[str]) -> list[TaskState | None]:
        """Cancel what waits, ask what runs to stop."""
        states = self._engine.write(lambda session: control.cancel(session, task_ids, self._clock.now()))
        self._engine.signal()
        ended = {info.id: info.state for info in self.get([i for i in task_ids if i not in states]) if info}
        return [states.get(task_id) or ended.get(task_id) for task_id in task_ids]

    def replay(self, task_ids: Sequence[str], queue: str | None = None) -> list[bool]:
        """Queue dead letters again with a new budget and a new place."""
        done = self._engine.write(lambda session: control.replay(session, task_ids, queue, self._clock.now()))
        self._engine.signal()
        return done

    def purge(self, task_ids: Sequence[str]) -> int:
        """Delete ended tasks' records now."""
        done = self._engine.write(lambda session: control.purge(session, task_ids, self._clock.now()))
        self._engine.signal()
        return done

    def stats(self, queues: Sequence[str] = ()) -> list[QueueStats]:
        """The named queues, or all."""
        return self._engine.read(lambda queries: queries.stats(queues, self._clock.now()))

    def partitions(self, queue: str, codes: Sequence[str] = (), *, stopped: bool = False) -> list[PartitionInfo]:
        """The live partitions of a queue, or those of these codes."""
        return self._engine.read(lambda queries: queries.partitions(queue, codes, stopped))

    def watch(self, task_id: str, timeout: float) -> bool:
        """Block until the task has ended or is gone."""
        return self._engine.watch(task_id, timeout)

    def now(self) -> int:
        """The store's clock."""
        return self._clock.now()

    def checkup(self) -> list[Finding]:
        """What the engine finds wrong with itself."""
        return self._engine.checkup()

    def limits(self, keys: Sequence[str] = ()) -> list[LimitInfo]:
        """The concurrency limits that have tasks running or parked."""
        return self._engine.read(lambda queries: queries.limits(keys))

    def workers(self) -> list[WorkerInfo]:
        """The live workers."""
        infos = self._engine.read(lambda queries: queries.workers(self._clock.now()))
        workers = [_or_none(_decode_worker, info) for info in infos]
        return [worker for worker in workers if worker is not None]

    def change_queue(self, queue: str, changes: Mapping[str, Any]) -> QueueConfig:
        """Change some of a queue's settings."""
        config = self._engine.write(lambda session: control.change_queue(session, queue, changes))
        self._engine.signal()
        return config

    def pause_queue(self, queue: str, paused: bool) -> None:
        """Stop or resume claims from a queue."""
        self._engine.write(lambda session: session.pause(queue, paused))
        self._engine.signal()

    def delete_queue(self, queue: str) -> bool:
        """Forget a queue that has no unfinished tasks."""
        return self._engine.write(lambda session: session.delete_queue(queue))

    def pause_partition(self, queue: str, code: str, paused: bool) -> None:
        """Stop or resume claims from a partition."""
        now = self._clock.now()
        self._engine.write(lambda session: control.pause_partition(session, queue, code, paused, now))
        self._engine.signal()

    def release_partition(self, queue: str, code: str) -> bool:
        """Try the dead head of a held partition again."""
        now = self._clock.now()
        done = self._engine.write(lambda session: control.release_partition(session, queue, code, now))
        self._engine.signal()
        return done

    def skip_head(self, queue: str, code: str) -> bool:
        """Let an ordered partition go on without its head."""
        now = self._clock.now()
        done = self._engine.write(lambda session: control.skip_head(session, queue, code, now))
        self._engine.signal()
        return done

    def flush(self) -> None:
        """Delete everything of this namespace."""
        self._engine.write(lambda session: session.flush())


def _or_none(decode: Callable[[Any], T], text: str | bytes | None) -> T | None:
    """Decoded, None where there is nothing or something has damaged it: one bad record must not hide all others."""
    try:
        return None if text is None else decode(text)
    except (msgspec.DecodeError, ValueError):
        return None


def task_info(row: dict[str, Any], now: int) -> TaskInfo:
    """A row of ``tasks`` or ``history`` as users see it. What is damaged in it is left out, and said."""
    envelope = _or_none(codec.decode, row["body"])
    args = [] if envelope is None else _or_none(_decode_args, envelope.args)
    kwargs = {} if envelope is None else _or_none(_decode_kwargs, envelope.kwargs)
    damaged = envelope is None or args is None or kwargs is None
    running = row["state"] == RUNNING
    log = decode_log(row["attempt_log"])
    last = log[-1] if log else None
    return TaskInfo(
        id=row["id"],
        queue=row["queue"],
        handler=row["handler"],
        state=_visible_state(row, now),
        priority=row["priority"],
        seq=row["seq"],
        attempt=row["attempts"] + (running and row["started"]),
        max_attempts=row["max_attempts"],
        epoch=row["epoch"],
        version=row["version"] or "",
        partition=row["code"],
        key=row["idem_key"],
        limit=None if row["limit_key"] is None else Limit(row["limit_key"], row["limit_n"]),
        parked=row["state"] == PARKED,
        args=args or [],
        kwargs=kwargs or {},
        headers={} if envelope is None else envelope.headers,
        tags=_or_none(_decode_tags, row["tags"]) or [],
        result=_or_none(_decode_any, row["result"]),
        reason=row["reason"],
        error=row["error"] or (last.error if last else None) or (DAMAGED if damaged else None),
        traceback=row["traceback"] or (last.traceback if last else None),
        attempts=log,
        created_at=row["created_at"],
        available_at=row["available_at"] if row["retry_at"] is None else row["retry_at"],
        dispatch_at=row["available_at"] - row["priority"] * row["aging_us"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        lease_until=row["due_at"] if running else None,
        delete_at=row["delete_at"],
        worker=row["worker"],
        cancel_requested=running and bool(row["cancel_requested"]),
        replays=row["replays"],
        progress=_or_none(_decode_progress, row["progress"]),
        started=not running or bool(row["started"]),
    )


def _visible_state(row: dict[str, Any], now: int) -> TaskState:
    """A waiting task's state depends only on the time, not on when a promoter ran."""
    if row["state"] in ENDED:
        return ENDED[row["state"]]
    if row["state"] == RUNNING:
        return TaskState.RUNNING
    if row["retry_at"] is not None and row["retry_at"] > now:
        return TaskState.RETRYING
    return TaskState.SCHEDULED if row["available_at"] > now else TaskState.QUEUED
