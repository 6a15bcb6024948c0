"""Reads for operators. Nothing is decided on them; they never wait for a writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskmq.names import MAX_PRIORITY
from taskmq.queue import QueueConfig
from taskmq.state import TaskState
from taskmq.transport.base import Find, LimitInfo, PartitionInfo, QueueStats
from taskmq.transport.sql.codes import (
    CODE_OF,
    COUNT_DEAD,
    COUNT_READY,
    COUNT_RETRYING,
    COUNT_RUNNING,
    COUNT_SCHEDULED,
    DUE,
    READY,
    RUNNING,
)
from taskmq.transport.sql.dialect import Due
from taskmq.transport.sql.sqlite.due import BLOCK, EXPIRY, LEASE, TASK, any_due
from taskmq.transport.sql.sqlite.rare import as_json_list, decode_config

_SHARED = (
    *("id", "seq", "state", "handler", "priority", "aging_us", "available_at", "code", "epoch", "attempts"),
    *("max_attempts", "replays", "created_at", "started_at", "worker", "idem_key", "tags", "attempt_log", "body"),
    *("version", "limit_key", "limit_n", "progress"),
)
_OF_TASK = ("retry_at", "due_at", "started", "cancel_requested")
_OF_HISTORY = ("finished_at", "delete_at", "reason", "error", "traceback", "result")


def _select(table: str, own: Sequence[str]) -> str:
    """Tasks and ended tasks with the same columns in the same order, so that pages of both can be joined."""
    columns = [f"t.{name}" for name in _SHARED]
    columns += [f"t.{name}" if name in own else f"NULL AS {name}" for name in (*_OF_TASK, *_OF_HISTORY)]
    return f"SELECT q.name AS queue, {', '.join(columns)} FROM {table} t JOIN taskmq_queues q USING (queue_id)"


TASKS = _select("taskmq_tasks", _OF_TASK)
HISTORY = _select("taskmq_history", _OF_HISTORY)
BY_ID = "{} WHERE t.id IN (SELECT value FROM json_each(?)) AND q.namespace=?"

# What a waiting task's state is depends on the time alone (inspect.py).
_RETRYING = f"(t.state<>{RUNNING} AND t.retry_at IS NOT NULL AND t.retry_at>:now)"
_SCHEDULED = f"(t.state<>{RUNNING} AND t.available_at>:now AND NOT {_RETRYING})"
_STATES = {
    TaskState.SCHEDULED: _SCHEDULED,
    TaskState.RETRYING: _RETRYING,
    TaskState.QUEUED: f"(t.state<>{RUNNING} AND NOT {_SCHEDULED} AND NOT {_RETRYING})",
    TaskState.RUNNING: f"t.state={RUNNING}",
}

OVERDUE, RETRY_OVERDUE, RETRY_IN_LINE = 10, 11, 12
_WANTED = "(:names IS NULL OR q.name IN (SELECT value FROM json_each(:names)))"
# The counts know where tasks are. A task that is due and was not promoted yet, and one that waits in line for the end
# of its delay, are counted apart; both come from indexes that hold nothing else.
COUNTS = f"""
SELECT h.queue_id, kind, priority, sum(n) FROM taskmq_counts c JOIN taskmq_handlers h USING (handler_id)
  JOIN taskmq_queues q USING (queue_id) WHERE q.namespace=:namespace AND {_WANTED} GROUP BY 1, 2, 3
UNION ALL
SELECT t.queue_id, CASE WHEN lane IS NULL THEN {OVERDUE} ELSE {RETRY_OVERDUE} END, priority, count(*)
  FROM taskmq_queues q CROSS JOIN taskmq_tasks t ON t.queue_id=q.queue_id AND t.state={DUE} AND t.due_at<=:now
  WHERE q.namespace=:namespace AND {_WANTED} GROUP BY 1, 2, 3
UNION ALL
SELECT t.queue_id, {RETRY_IN_LINE}, priority, count(*)
  FROM taskmq_queues q CROSS JOIN taskmq_tasks t
    ON t.queue_id=q.queue_id AND t.retry_at IS NOT NULL AND t.state={READY} AND t.retry_at>:now
  WHERE q.namespace=:namespace AND {_WANTED} GROUP BY 1, 2, 3
"""
BY_HANDLER = f"""
SELECT h.queue_id, h.name, sum(n) FROM taskmq_counts c JOIN taskmq_handlers h USING (handler_id)
  JOIN taskmq_queues q USING (queue_id) WHERE q.namespace=:namespace AND {_WANTED} AND kind<{COUNT_DEAD}
GROUP BY 1, 2 HAVING sum(n)>0 ORDER BY 1, 2
"""
# The first of each priority's line and turn, found by stepping from one to the next; an aging queue has one of each.
NEXT_IN_TURN = f"""
WITH RECURSIVE
wanted AS (SELECT q.queue_id, q.aging_us FROM taskmq_queues q WHERE q.namespace=:namespace AND {_WANTED}),
rank(value) AS (SELECT 0 UNION ALL SELECT value+1 FROM rank WHERE value<9),
heads(queue_id, seq) AS (
  SELECT w.queue_id, (SELECT t.seq FROM taskmq_tasks t WHERE t.lane=-h.handler_id AND t.state={READY}
    AND t.s1=rank.value ORDER BY s1, s2, seq LIMIT 1)
  FROM wanted w JOIN taskmq_handlers h USING (queue_id) JOIN rank WHERE w.aging_us=0
  UNION ALL
  SELECT w.queue_id, (SELECT f.hseq FROM taskmq_flows f WHERE f.queue_id=w.queue_id AND f.elig=1 AND f.h1=rank.value
    ORDER BY h1, k2, k3, code LIMIT 1) FROM wanted w JOIN rank WHERE w.aging_us=0
  UNION ALL
  SELECT w.queue_id, (SELECT t.seq FROM taskmq_tasks t WHERE t.lane=-h.handler_id AND t.state={READY}
    ORDER BY s1, s2, seq LIMIT 1) FROM wanted w JOIN taskmq_handlers h USING (queue_id) WHERE w.aging_us>0
  UNION ALL
  SELECT w.queue_id, (SELECT f.hseq FROM taskmq_flows f WHERE f.queue_id=w.queue_id AND f.elig=1
    ORDER BY h1, k2, k3, code LIMIT 1) FROM wanted w WHERE w.aging_us>0)
SELECT heads.queue_id, min(coalesce(t.retry_at, t.available_at)) FROM heads JOIN taskmq_tasks t USING (seq) GROUP BY 1
"""
QUEUES = f"""
SELECT q.queue_id, name, config, paused, served, flows, CASE WHEN open_at>:now THEN open_at END
FROM taskmq_queues q WHERE q.namespace=:namespace AND {_WANTED} ORDER BY name
"""
DUE_QUEUES = f"""
SELECT name FROM taskmq_queues q WHERE namespace=:namespace AND ({any_due(TASK, LEASE, BLOCK, EXPIRY)})
ORDER BY queue_id
"""
DUE_RECORDS = """
SELECT EXISTS (SELECT 1 FROM taskmq_history WHERE delete_at<=:now)
  OR EXISTS (SELECT 1 FROM taskmq_keys WHERE expires_at IS NOT NULL AND expires_at<=:now)
  OR EXISTS (SELECT 1 FROM taskmq_workers WHERE expires_at<=:now)
"""
LIMITS = """
SELECT limit_key, running, (SELECT coalesce(sum(parked), 0) FROM taskmq_parked p
  WHERE p.namespace=l.namespace AND p.limit_key=l.limit_key)
FROM taskmq_limits l WHERE namespace=?1 AND (?2 IS NULL OR limit_key IN (SELECT value FROM json_each(?2)))
ORDER BY limit_key
"""
PARTITIONS = f"""
SELECT code, weight, n_run, n_wait, max_running, blocked_until, held_by, paused,
  (SELECT count(*) FROM taskmq_tasks t WHERE t.lane=f.flow_id AND t.state={READY}),
  (SELECT worker FROM taskmq_tasks t WHERE t.lane=f.flow_id AND t.state={RUNNING} AND t.queue_id=f.queue_id)
FROM taskmq_flows f WHERE queue_id=(SELECT queue_id FROM taskmq_queues WHERE namespace=? AND name=?)
  AND (?3 IS NULL OR code IN (SELECT value FROM json_each(?3)))
  AND (NOT ?4 OR held_by IS NOT NULL OR paused OR blocked_until IS NOT NULL) ORDER BY code
"""


Counts = dict[tuple[int, int], int]
"""(kind, priority) → tasks of a queue."""


class SqliteQueries:
    """Reads on one connection."""

    def __init__(self, connection: sqlite3.Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace

    def _dicts(self, statement: str, parameters: Any) -> list[dict[str, Any]]:
        cursor = self._connection.execute(statement, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def by_id(self, task_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Tasks, ended or not."""
        parameters = (as_json_list(task_ids), self._namespace)
        return [row for table in (TASKS, HISTORY) for row in self._dicts(BY_ID.format(table), parameters)]

    def find(self, params: Find, now: int) -> list[dict[str, Any]]:
        """One page, newest first, and one row more when there is a next one."""
        parameters = {"namespace": self._namespace, "now": now, "limit": params.limit + 1}
        common = ["q.namespace=:namespace"]
        for column, value in (("q.name", params.queue), ("t.handler", params.handler), ("t.code", params.partition)):
            if value is not None:
                name = column.replace(".", "_")
                common.append(f"{column}=:{name}")
                parameters[name] = value
        if params.tag is not None:
            common.append("EXISTS (SELECT 1 FROM json_each(t.tags) WHERE value=:tag)")
            parameters["tag"] = params.tag
        if params.after is not None:
            common.append("t.id<:after")
            parameters["after"] = params.after
        waiting = [_STATES[state] for state in params.states if state in _STATES]
        ended = [str(CODE_OF[state]) for state in params.states if state in CODE_OF]
        parts = []
        if waiting or not params.states:
            parts.append((TASKS, [*common, f"({' OR '.join(waiting)})"] if waiting else common))
        if ended or not params.states:
            parts.append((HISTORY, [*common, f"t.state IN ({', '.join(ended)})"] if ended else common))
        pages = [
            f"SELECT * FROM ({table} WHERE {' AND '.join(where)} ORDER BY t.id DESC LIMIT :limit)"
            for table, where in parts
        ]
        return self._dicts(f"{' UNION ALL '.join(pages)} ORDER BY id DESC LIMIT :limit", parameters)

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        """The named queues, or all."""
        names = as_json_list(queues) if queues else None
        parameters = {"namespace": self._namespace, "names": names, "now": now}
        run = self._connection.execute
        counts: dict[int, Counts] = {}
        for queue_id, kind, priority, count in run(COUNTS, parameters):
            counts.setdefault(queue_id, {})[kind, priority] = count
        handlers: dict[int, dict[str, int]] = {}
        for queue_id, name, count in run(BY_HANDLER, parameters):
            handlers.setdefault(queue_id, {})[name] = count
        oldest = dict(run(NEXT_IN_TURN, parameters).fetchall())
        return [
            _stats(row, counts.get(row[0], {}), handlers.get(row[0], {}), oldest.get(row[0]), now)
            for row in run(QUEUES, parameters).fetchall()
        ]

    def partitions(self, queue: str, codes: Sequence[str], stopped: bool) -> list[PartitionInfo]:
        """Live partitions."""
        wanted = as_json_list(codes) if codes else None
        rows = self._connection.execute(PARTITIONS, (self._namespace, queue, wanted, stopped))
        return [
            PartitionInfo(
                queue=queue,
                code=code,
                ordered=code.startswith("!"),
                weight=weight,
                waiting=waiting + n_wait,
                running=n_run,
                max_running=limit,
                blocked_until=blocked_until,
                paused=bool(paused),
                held_by=held_by,
                worker=worker if code.startswith("!") else None,
            )
            for code, weight, n_run, n_wait, limit, blocked_until, held_by, paused, waiting, worker in rows
        ]

    def workers(self, now: int) -> list[str]:
        """Rows of live workers."""
        statement = "SELECT info FROM taskmq_workers WHERE namespace=? AND expires_at>? ORDER BY id"
        return [row[0] for row in self._connection.execute(statement, (self._namespace, now))]

    def limits(self, keys: Sequence[str]) -> list[LimitInfo]:
        """Concurrency limits with tasks running or parked."""
        rows = self._connection.execute(LIMITS, (self._namespace, as_json_list(keys) if keys else None))
        return [LimitInfo(key=key, running=running, parked=parked) for key, running, parked in rows]

    def due(self, now: int) -> Due:
        """What housekeeping would find to do."""
        parameters = {"namespace": self._namespace, "now": now}
        queues = [row[0] for row in self._connection.execute(DUE_QUEUES, parameters)]
        return Due(queues, bool(self._connection.execute(DUE_RECORDS, parameters).fetchone()[0]))


def _stats(row: tuple[Any, ...], counts: Counts, handlers: dict[str, int], oldest: int | None, now: int) -> QueueStats:
    _, name, config, paused, served, flows, next_start_at = row

    def total(kind: int) -> int:
        return sum(count for (known, _), count in counts.items() if known == kind)

    by_priority = {}
    for priority in range(MAX_PRIORITY, -1, -1):
        waiting = (COUNT_READY, OVERDUE, RETRY_OVERDUE)
        ready = sum(counts.get((kind, priority), 0) for kind in waiting) - counts.get((RETRY_IN_LINE, priority), 0)
        if ready:
            by_priority[priority] = ready
    settings = decode_config(config) if config else QueueConfig()
    return QueueStats(
        name=name,
        config=replace(settings, paused=bool(paused)),
        scheduled=total(COUNT_SCHEDULED) - total(OVERDUE),
        ready=sum(by_priority.values()),
        running=total(COUNT_RUNNING),
        retrying=total(COUNT_RETRYING) - total(RETRY_OVERDUE) + total(RETRY_IN_LINE),
        dead=total(COUNT_DEAD),
        by_priority=by_priority,
        by_handler=handlers,
        partitions=flows,
        oldest_ready_age=None if oldest is None else now - oldest,
        served=served,
        next_start_at=next_start_at,
    )
