"""Reads for operators, one text for all engines. Nothing is decided on them; they never wait for a writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from taskmq.state import TaskState
from taskmq.transport.base import Find, LimitInfo, PartitionInfo, QueueStats
from taskmq.transport.serving import Keyed, Search
from taskmq.transport.sql.codes import CODE_OF, COUNT_DEAD, DUE, READY, RUNNING
from taskmq.transport.sql.fragments import BLOCK, EXPIRY, LEASE, TASK, any_due
from taskmq.transport.sql.rows import Due, Row
from taskmq.transport.sql.stats import OVERDUE, RETRY_IN_LINE, RETRY_OVERDUE, Counts, queue_stats
from taskmq.transport.sql.words import Words

_SHARED = (
    *("id", "seq", "state", "handler", "priority", "aging_us", "available_at", "code", "epoch", "attempts"),
    *("max_attempts", "replays", "created_at", "started_at", "worker", "idem_key", "tags", "attempt_log", "body"),
    *("version", "limit_key", "limit_n", "progress"),
)
_OF_TASK = ("retry_at", "due_at", "started", "cancel_requested")
_OF_HISTORY = ("finished_at", "delete_at", "reason", "error", "traceback", "result")
_COLUMNS = ("queue", *_SHARED, *_OF_TASK, *_OF_HISTORY)


def _select(table: str, own: Sequence[str]) -> str:
    """Tasks and ended tasks with the same columns in the same order."""
    columns = [f"t.{name}" for name in _SHARED]
    columns += [f"t.{name}" if name in own else f"NULL AS {name}" for name in (*_OF_TASK, *_OF_HISTORY)]
    return f"SELECT q.name AS queue, {', '.join(columns)} FROM {table} t JOIN taskmq_queues q USING (queue_id)"


TASKS = _select("taskmq_tasks", _OF_TASK)
HISTORY = _select("taskmq_history", _OF_HISTORY)
BY_ID = " WHERE t.id IN @ids AND q.namespace=:namespace"

# What a waiting task's state is depends on the time alone (inspect.py).
_RETRYING = f"(t.state<>{RUNNING} AND t.retry_at IS NOT NULL AND t.retry_at>:now)"
_SCHEDULED = f"(t.state<>{RUNNING} AND t.available_at>:now AND NOT {_RETRYING})"
_STATES = {
    TaskState.SCHEDULED: _SCHEDULED,
    TaskState.RETRYING: _RETRYING,
    TaskState.QUEUED: f"(t.state<>{RUNNING} AND NOT {_SCHEDULED} AND NOT {_RETRYING})",
    TaskState.RUNNING: f"t.state={RUNNING}",
}


def _counts(table: str, wanted: str) -> str:
    return f"""SELECT h.queue_id, kind, priority, sum(n) FROM {table} c JOIN taskmq_handlers h USING (handler_id)
  JOIN taskmq_queues q USING (queue_id) WHERE q.namespace=:namespace{wanted} GROUP BY 1, 2, 3"""


def _by_handler(table: str, wanted: str) -> str:
    return f"""SELECT h.queue_id, h.name, sum(n) FROM {table} c JOIN taskmq_handlers h USING (handler_id)
  JOIN taskmq_queues q USING (queue_id) WHERE q.namespace=:namespace{wanted} AND kind<{COUNT_DEAD} GROUP BY 1, 2"""


# The counts know where tasks are. A task that is due and was not promoted yet, and one that waits in line for the end
# of its delay, are counted apart; both come from indexes that hold nothing else.
def _misplaced(wanted: str) -> str:
    return f"""
SELECT t.queue_id, CASE WHEN lane IS NULL THEN {OVERDUE} ELSE {RETRY_OVERDUE} END, priority, count(*)
  FROM taskmq_queues q JOIN taskmq_tasks t ON t.queue_id=q.queue_id AND t.state={DUE} AND t.due_at<=:now
  WHERE q.namespace=:namespace{wanted} GROUP BY 1, 2, 3
UNION ALL
SELECT t.queue_id, {RETRY_IN_LINE}, priority, count(*)
  FROM taskmq_queues q JOIN taskmq_tasks t
    ON t.queue_id=q.queue_id AND t.retry_at IS NOT NULL AND t.state={READY} AND t.retry_at>:now
  WHERE q.namespace=:namespace{wanted} GROUP BY 1, 2, 3
"""


# The first of each priority's line and turn, found by stepping from one to the next; an aging queue has one of each.
def _next_in_turn(wanted: str) -> str:
    return f"""
WITH RECURSIVE
wanted AS (SELECT q.queue_id, q.aging_us FROM taskmq_queues q WHERE q.namespace=:namespace{wanted}),
levels(s1) AS (SELECT 0 UNION ALL SELECT s1+1 FROM levels WHERE s1<9),
heads(queue_id, seq) AS (
  SELECT w.queue_id, (SELECT t.seq FROM taskmq_tasks t WHERE t.lane=-h.handler_id AND t.state={READY}
    AND t.s1=levels.s1 ORDER BY t.s1, t.s2, t.seq LIMIT 1)
  FROM wanted w JOIN taskmq_handlers h USING (queue_id) CROSS JOIN levels WHERE w.aging_us=0
  UNION ALL
  SELECT w.queue_id, (SELECT f.hseq FROM taskmq_flows f WHERE f.queue_id=w.queue_id AND f.elig=1 AND f.h1=levels.s1
    ORDER BY f.h1, f.k2, f.k3, f.code LIMIT 1) FROM wanted w CROSS JOIN levels WHERE w.aging_us=0
  UNION ALL
  SELECT w.queue_id, (SELECT t.seq FROM taskmq_tasks t WHERE t.lane=-h.handler_id AND t.state={READY}
    ORDER BY t.s1, t.s2, t.seq LIMIT 1) FROM wanted w JOIN taskmq_handlers h USING (queue_id) WHERE w.aging_us>0
  UNION ALL
  SELECT w.queue_id, (SELECT f.hseq FROM taskmq_flows f WHERE f.queue_id=w.queue_id AND f.elig=1
    ORDER BY f.h1, f.k2, f.k3, f.code LIMIT 1) FROM wanted w WHERE w.aging_us>0)
SELECT heads.queue_id, min(coalesce(t.retry_at, t.available_at)) FROM heads JOIN taskmq_tasks t USING (seq)
GROUP BY heads.queue_id
"""


def _queues(wanted: str) -> str:
    return f"""
SELECT q.queue_id, name, config, paused, served, flows, CASE WHEN open_at>:now THEN open_at END
FROM taskmq_queues q WHERE q.namespace=:namespace{wanted} ORDER BY name
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
DUE_DELTAS = "  OR EXISTS (SELECT 1 FROM taskmq_count_deltas WHERE slot>=16)"
LIMITS = """
SELECT limit_key, running, (SELECT coalesce(sum(parked), 0) FROM taskmq_parked p
  WHERE p.namespace=l.namespace AND p.limit_key=l.limit_key)
FROM taskmq_limits l WHERE namespace=:namespace{wanted} ORDER BY limit_key
"""
PARTITIONS = f"""
SELECT code, weight, n_run, n_wait, max_running, blocked_until, held_by, paused,
  (SELECT count(*) FROM taskmq_tasks t WHERE t.lane=f.flow_id AND t.state={READY}),
  (SELECT min(worker) FROM taskmq_tasks t WHERE t.lane=f.flow_id AND t.state={RUNNING} AND t.queue_id=f.queue_id)
FROM taskmq_flows f WHERE queue_id=(SELECT queue_id FROM taskmq_queues WHERE namespace=:namespace AND name=:queue)
{{wanted}} ORDER BY code
"""
STOPPED = " AND (held_by IS NOT NULL OR paused=1 OR blocked_until IS NOT NULL)"
KEYED = """
SELECT idem_key, task_id, digest FROM taskmq_keys k JOIN taskmq_queues q USING (queue_id)
WHERE q.namespace=:namespace AND q.name=:queue AND idem_key IN @keys AND (expires_at IS NULL OR expires_at>:now)
"""
_SEARCH = {
    "queues": "q.name IN @queues",
    "priority": "t.priority=:priority",
    "limit_key": "t.limit_key=:limit_key",
    "created_from": "t.created_at>=:created_from",
    "created_to": "t.created_at<:created_to",
}
"""A condition of Search by its field."""
WORKERS = "SELECT info FROM taskmq_workers WHERE namespace=:namespace AND expires_at>:now ORDER BY id"


class Queries:
    """Reads on one connection. ``ask`` runs a statement in the engine's words and returns all its rows."""

    def __init__(
        self, ask: Callable[[str, dict[str, Any]], Sequence[Sequence[Any]]], words: Words, namespace: str
    ) -> None:
        self._run = ask
        self._words = words
        self._namespace = namespace

    def _ask(self, statement: str, /, **parameters: Any) -> Sequence[Sequence[Any]]:
        values = self._words.values({"namespace": self._namespace, **parameters})
        return self._run(self._words.text(statement), values)

    def _dicts(self, statement: str, **parameters: Any) -> list[Row]:
        return [dict(zip(_COLUMNS, row, strict=True)) for row in self._ask(statement, **parameters)]

    def by_id(self, task_ids: Sequence[str]) -> list[Row]:
        """Tasks, ended or not."""
        if not task_ids:
            return []
        return [row for table in (TASKS, HISTORY) for row in self._dicts(table + BY_ID, ids=task_ids)]

    def find(self, params: Find, now: int) -> list[Row]:
        """One page, newest first, and one row more when there is a next one."""
        parameters: dict[str, Any] = {"limit": params.limit + 1, "now": now}
        common = ["q.namespace=:namespace"]
        for column, value in (("q.name", params.queue), ("t.handler", params.handler), ("t.code", params.partition)):
            if value is not None:
                name = column.replace(".", "_")
                common.append(f"{column}=:{name}")
                parameters[name] = value
        if params.tag is not None:
            common.append(self._words.has_tag)
            parameters["tag"] = params.tag
        if params.after is not None:
            forward = isinstance(params, Search) and params.oldest_first
            common.append("t.id>:after" if forward else "t.id<:after")
            parameters["after"] = params.after
        if isinstance(params, Search):
            for name, condition in _SEARCH.items():
                value = getattr(params, name)
                if value is not None:
                    common.append(condition)
                    parameters[name] = value
        waiting = [_STATES[state] for state in params.states if state in _STATES]
        ended = [str(CODE_OF[state]) for state in params.states if state in CODE_OF]
        parts = []
        if waiting or not params.states:
            parts.append((TASKS, [*common, f"({' OR '.join(waiting)})"] if waiting else common))
        if ended or not params.states:
            parts.append((HISTORY, [*common, f"t.state IN ({', '.join(ended)})"] if ended else common))
        rows: list[Row] = []
        oldest_first = isinstance(params, Search) and params.oldest_first
        for table, where in parts:
            page = f"{table} WHERE {' AND '.join(where)} ORDER BY t.id {'ASC' if oldest_first else 'DESC'} LIMIT :limit"
            rows += self._dicts(page, **parameters)
        return sorted(rows, key=itemgetter("id"), reverse=not oldest_first)[: params.limit + 1]

    def held_by(self, worker: str) -> list[Row]:
        """What a worker or session holds."""
        return self._dicts(
            f"{TASKS} WHERE q.namespace=:namespace AND t.state={RUNNING} AND t.worker=:worker", worker=worker
        )

    def keyed(self, queue: str, keys: Sequence[str], now: int) -> dict[str, Keyed]:
        """Who has these idempotency keys of a queue."""
        rows = self._ask(self._words.keyed or KEYED, queue=queue, keys=keys, now=now) if keys else ()
        return {key: Keyed(task_id, digest) for key, task_id, digest in rows}

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        """The named queues, or all."""
        wanted = " AND q.name IN @names" if queues else ""
        names: dict[str, Any] = {"names": queues} if queues else {}
        counts: dict[int, Counts] = {}
        handlers: dict[int, dict[str, int]] = {}
        for table in self._words.counts:
            for queue_id, kind, priority, count in self._ask(_counts(table, wanted), **names):
                _add(counts.setdefault(queue_id, {}), (kind, priority), count)
            for queue_id, name, count in self._ask(_by_handler(table, wanted), **names):
                _add(handlers.setdefault(queue_id, {}), name, count)
        for queue_id, kind, priority, count in self._ask(_misplaced(wanted), now=now, **names):
            _add(counts.setdefault(queue_id, {}), (kind, priority), count)
        oldest = {row[0]: row[1] for row in self._ask(_next_in_turn(wanted), **names)}
        return [
            queue_stats(row, counts.get(row[0], {}), handlers.get(row[0], {}), oldest.get(row[0]), now)
            for row in self._ask(_queues(wanted), now=now, **names)
        ]

    def partitions(self, queue: str, codes: Sequence[str], stopped: bool) -> list[PartitionInfo]:
        """Live partitions."""
        wanted = (" AND code IN @codes" if codes else "") + (STOPPED if stopped else "")
        some: dict[str, Any] = {"codes": codes} if codes else {}
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
            for code, weight, n_run, n_wait, limit, blocked_until, held_by, paused, waiting, worker in self._ask(
                PARTITIONS.format(wanted=wanted), queue=queue, **some
            )
        ]

    def workers(self, now: int) -> list[str]:
        """Rows of live workers."""
        return [row[0] for row in self._ask(WORKERS, now=now)]

    def limits(self, keys: Sequence[str]) -> list[LimitInfo]:
        """Concurrency limits with tasks running or parked."""
        wanted, some = (" AND limit_key IN @keys", {"keys": keys}) if keys else ("", {})
        rows = self._ask(LIMITS.format(wanted=wanted), **some)
        return [LimitInfo(key=key, running=running, parked=int(parked)) for key, running, parked in rows]

    def due(self, now: int) -> Due:
        """What housekeeping would find to do."""
        queues = [row[0] for row in self._ask(DUE_QUEUES, now=now)]
        records = DUE_RECORDS + (DUE_DELTAS if len(self._words.counts) > 1 else "")
        return Due(queues, bool(self._ask(records, now=now)[0][0]))


def _add(totals: dict[Any, int], at: Any, count: Any) -> None:
    totals[at] = totals.get(at, 0) + int(count)
