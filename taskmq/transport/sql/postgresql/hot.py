"""The text of PostgreSQL's hot statements.

Rows that are written travel as one JSON value (``json_to_recordset``): measured with 100 tasks of 27 columns 1.6 ms,
against 2.1 ms for arrays, 4.0 and 12.5 ms for jsonb and json arrays of arrays, and 20 ms for a VALUES list; and it is
one statement, prepared once, for any number of rows. Lists of numbers travel as the text of an array.

State numbers are literals: with a parameter in their place a generic plan cannot use the partial indexes. And what is
found by its ``seq`` must not name its state in the same way (``state+0``): planned while there were few ready tasks,
the claim walked the whole line for each of its tasks – 32 ms instead of 0.3 ms at 16,000 ready ones. Where one of
several codes is looked for in an index behind the queue, ``code = ANY`` may become a filter over all codes of the queue
(50,000 rows read for ten); ``LATERAL … LIMIT 1`` is a look for each.

A join with rows that are given may be turned round: analysed just when it had been drained, a table of 300,000 rows is
planned as one of one row, read whole, and looked through for each. Named by a list as well, as an index condition, it
was still planned as the list times itself (58 ms for 250 tasks). So the given rows look up the places of what they mean
themselves (``_given``), one step into the index for each, and the join is by place (8 ms), which is quick one way only.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskmq.transport.sql.codes import COUNT_QUEUED, COUNT_RUNNING, DUE, READY, RUNNING, SUCCEEDED
from taskmq.transport.sql.fragments import BLOCK, EXPIRY, LEASE, TASK, TASK_ROW, counted, first
from taskmq.transport.sql.postgresql.words import COUNTS
from taskmq.transport.sql.rows import (
    ClaimedTask,
    DueTask,
    Ending,
    FlowValues,
    NewTask,
    Renewal,
    Success,
    TaskUpdate,
)


def columns(*names: str, prefix: str = "") -> str:
    """A list of columns."""
    return ", ".join(prefix + name for name in names)


def records(struct: type[msgspec.Struct]) -> str:
    """The rows of the JSON parameter as a table ``r``."""
    return f"json_to_recordset(%s::json) AS r({record_columns(struct)})"


def record_columns(struct: type[msgspec.Struct]) -> str:
    """The columns of such a table, with their types."""
    names = {bool: "boolean", str: "text"}
    fields = []
    for field in msgspec.structs.fields(struct):
        kinds: tuple[Any, ...] = getattr(field.type, "__args__", (field.type,))
        fields.append(f"{field.name} {names.get(kinds[0], 'bigint')}")
    return ", ".join(fields)


def _given(rows: str, table: str, key: str, condition: str = "") -> str:
    """What a statement begins with that joins a table with these rows, as ``r``, by ``ctid=r.place``.

    ``key``: a unique column of both. ``condition``: what else must be true of the table's row ``g``.
    """
    place = f"SELECT g.ctid FROM {table} g WHERE g.{key}=r.{key}{condition}"
    return f"WITH r AS MATERIALIZED (SELECT r.*, ({place}) AS place FROM {rows})"


def given_tasks(rows: str, condition: str = "") -> str:
    """The same for rows that name tasks by ``seq``."""
    return _given(rows, "taskmq_tasks", "seq", condition)


_FLOW = (
    "flow_id, code, weight, tag, h1, h2, hseq, hhandler, elig, n_run, n_wait, blocked_until, blocked_seq, held_by, "
    "paused, max_running, p1, p2, pseq"
)

# ── queues ──

_WANTED = "namespace=%(namespace)s AND name = ANY(%(names)s)"
LOCK = f"SELECT queue_id FROM taskmq_queues WHERE {_WANTED} ORDER BY queue_id FOR UPDATE"
QUEUES = f"""
SELECT queue_id, name, aging_us, weight, served, v, j, utag, ulive, flows, paused, max_running,
  CASE WHEN max_running IS NULL THEN 0 ELSE {counted(COUNT_RUNNING, tables=COUNTS)}::bigint END, max_queued,
  CASE WHEN max_queued IS NULL THEN 0 ELSE {counted(*COUNT_QUEUED, tables=COUNTS)}::bigint END,
  rate, level, level_at, limited,
  (SELECT coalesce(json_agg(json_build_array(handler_id, h.name, version, keyed) ORDER BY handler_id), '[]')::text
    FROM taskmq_handlers h WHERE h.queue_id=q.queue_id),
  hold, lease_us, {first(TASK)}, {first(BLOCK)}, {first(LEASE)}, {first(EXPIRY)}, open_at
FROM taskmq_queues q WHERE {_WANTED} ORDER BY queue_id
"""
NEW_QUEUES = """
INSERT INTO taskmq_queues(namespace, name) SELECT %(namespace)s, n FROM unnest(%(names)s::text[]) n ORDER BY n
ON CONFLICT DO NOTHING
"""
FIRST_LINES = f"""
SELECT y.lane, y.s1, y.s2, y.seq, y.handler_id FROM taskmq_queues q JOIN taskmq_handlers h USING (queue_id)
CROSS JOIN LATERAL (SELECT lane, s1, s2, seq, handler_id FROM taskmq_tasks t
  WHERE t.lane=-h.handler_id AND t.state={READY} ORDER BY s1, s2, seq LIMIT %(look)s) y
WHERE q.{_WANTED.replace("AND name", "AND q.name")}
"""
FIRST_FLOWS = f"""
SELECT q.queue_id, y.* FROM taskmq_queues q CROSS JOIN LATERAL (SELECT {_FLOW} FROM taskmq_flows f
  WHERE f.queue_id=q.queue_id AND elig=1 ORDER BY h1, k2, k3, code LIMIT %(look)s) y
WHERE q.{_WANTED.replace("AND name", "AND q.name")}
"""
WRITE_QUEUE = """
UPDATE taskmq_queues SET served=%s, v=%s, j=%s, utag=%s, ulive=%s, flows=%s, level=%s, level_at=%s, open_at=%s,
  limited=%s WHERE queue_id=%s
"""
ADD_HANDLER = """
INSERT INTO taskmq_handlers(queue_id, name, version, keyed) VALUES (%s, %s, %s, %s) RETURNING handler_id
"""
_COUNTED = "unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) r(handler_id, kind, priority, n)"
ADD_COUNTS = f"""
INSERT INTO taskmq_counts AS c(handler_id, kind, priority, n) SELECT handler_id, kind, priority, n FROM {_COUNTED}
ON CONFLICT (handler_id, kind, priority) DO UPDATE SET n=c.n+excluded.n
"""
ADD_DELTAS = f"""
INSERT INTO taskmq_count_deltas AS c(handler_id, kind, priority, n, slot)
SELECT handler_id, kind, priority, n, %s FROM {_COUNTED}
ON CONFLICT (handler_id, kind, priority, slot) DO UPDATE SET n=c.n+excluded.n
"""
FOLD_DELTAS = """
WITH gone AS (DELETE FROM taskmq_count_deltas WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM taskmq_count_deltas WHERE slot>=16 LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING *)
INSERT INTO taskmq_count_deltas AS c(handler_id, kind, priority, n, slot)
SELECT handler_id, kind, priority, sum(n), %s FROM gone GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (handler_id, kind, priority, slot) DO UPDATE SET n=c.n+excluded.n
"""
GUARD_SHARED = "SELECT pg_advisory_xact_lock_shared(hashtextextended(n, 0)) FROM unnest(%s::text[]) n"
GUARD = "SELECT pg_advisory_xact_lock(hashtextextended(n, 0)) FROM unnest(%s::text[]) n"

# ── flows, lines ──

FLOWS_BY_CODE = f"""
SELECT f.* FROM unnest(%s::text[]) c(code)
CROSS JOIN LATERAL (SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=%s AND code=c.code LIMIT 1) f
"""
FLOWS_BY_ID = f"SELECT {_FLOW} FROM taskmq_flows WHERE flow_id = ANY(%s::bigint[])"
FLOWS_IN_TURN = f"""
SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=%s AND elig=1 ORDER BY h1, k2, k3, code LIMIT %s OFFSET %s
"""
FLOWS_OF_HANDLER = f"""
SELECT {_FLOW} FROM taskmq_flows WHERE hhandler=%s AND elig=1
ORDER BY h1, k2, k3, code LIMIT %s OFFSET %s
"""
FLOWS_DUE = f"""
SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=%s AND blocked_until IS NOT NULL AND blocked_until<=%s
ORDER BY blocked_until, blocked_seq LIMIT %s
"""
_FLOW_NAMES = FlowValues.__struct_fields__
INSERT_FLOWS = f"""
INSERT INTO taskmq_flows({columns(*_FLOW_NAMES)}) SELECT {columns(*_FLOW_NAMES)} FROM {records(FlowValues)}
"""
UPDATE_FLOWS = f"""
{_given(records(FlowValues), "taskmq_flows", "flow_id")}
UPDATE taskmq_flows f SET {", ".join(f"{name}=r.{name}" for name in _FLOW_NAMES[3:])} FROM r WHERE f.ctid=r.place
"""
DELETE_FLOWS = "DELETE FROM taskmq_flows WHERE flow_id = ANY(%s::bigint[])"
_LINE = "s1, s2, seq, handler_id"
LINE = f"""
SELECT {_LINE} FROM taskmq_tasks WHERE lane=%s AND state={READY} ORDER BY s1, s2, seq LIMIT %s OFFSET %s
"""
HEADS = f"""
SELECT l.lane, y.s1, y.s2, y.seq, y.handler_id FROM unnest(%s::bigint[]) l(lane)
CROSS JOIN LATERAL (SELECT {_LINE} FROM taskmq_tasks t WHERE t.lane=l.lane AND t.state={READY}
  ORDER BY s1, s2, seq LIMIT %s OFFSET %s) y
"""

# ── tasks ──

NEXT_SEQS = "SELECT nextval('taskmq_seq') FROM generate_series(1, %s)"
SPARE_FLOW_ID = "SELECT nextval('taskmq_flow_seq')"
_NEW = NewTask.__struct_fields__
_NEW_VALUES = ", ".join("coalesce(key_mode, 0)" if name == "key_mode" else name for name in _NEW[1:])
INSERT_TASKS = f"INSERT INTO taskmq_tasks({columns(*_NEW)}) SELECT seq, {_NEW_VALUES} FROM {records(NewTask)}"
APPEND_TASKS = f"""
INSERT INTO taskmq_tasks({columns(*_NEW)}) SELECT nextval('taskmq_seq'), {_NEW_VALUES} FROM {records(NewTask)}
"""
KNOWN_IDS = """
SELECT id FROM taskmq_tasks WHERE id = ANY(%(ids)s) UNION ALL SELECT id FROM taskmq_history WHERE id = ANY(%(ids)s)
"""
_DUE = columns(*DueTask._fields)
DUE_TASKS = f"""
SELECT {_DUE} FROM taskmq_tasks WHERE queue_id=%s AND state={DUE} AND due_at<=%s ORDER BY due_at, seq LIMIT %s
"""
MAKE_READY = f"""
{given_tasks("unnest(%s::bigint[], %s::bigint[], %s::bigint[]) r(seq, lane, state)")}
UPDATE taskmq_tasks t SET state=r.state, due_at=NULL, lane=r.lane FROM r WHERE t.ctid=r.place
"""
CLAIMED = ClaimedTask.__struct_fields__
CLAIM = f"""
{given_tasks("unnest(%s::bigint[], %s::boolean[]) WITH ORDINALITY r(seq, run, n)", f" AND g.state+0={READY}")}
UPDATE taskmq_tasks t SET state={RUNNING}, due_at=%s, epoch=epoch+1, worker=%s, batch=%s, position=r.n-1, started=0,
  run_lane=CASE WHEN r.run THEN lane END, progress=NULL
FROM r WHERE t.ctid=r.place
RETURNING {columns(*CLAIMED, prefix="t.")}
"""
BY_SEQ = f"""
SELECT {TASK_ROW} FROM taskmq_tasks t WHERE seq = ANY(%s::bigint[])
  AND (SELECT namespace FROM taskmq_queues q WHERE q.queue_id=t.queue_id)=%s
"""
BY_SEQ_LOCKED = f"{BY_SEQ}FOR UPDATE OF t"
RUN_MATES = f"""
SELECT {TASK_ROW} FROM taskmq_tasks t WHERE run_lane IS NOT NULL AND run_lane = ANY(%s::bigint[])
ORDER BY run_lane, s1, s2, seq
"""
ENDED_LEASES = f"""
SELECT {TASK_ROW} FROM taskmq_tasks t WHERE queue_id=%(queue)s AND state={RUNNING} AND due_at<=coalesce(
  (SELECT due_at FROM taskmq_tasks WHERE queue_id=%(queue)s AND state={RUNNING} AND due_at<=%(now)s
    ORDER BY due_at LIMIT 1 OFFSET %(last)s), %(now)s) ORDER BY t.due_at, seq FOR UPDATE SKIP LOCKED
"""
FIRST_IN_HANDS = f"""
SELECT DISTINCT ON (batch, run_lane) seq FROM taskmq_tasks
WHERE queue_id=%s AND state={RUNNING} AND batch = ANY(%s::bigint[]) ORDER BY batch, run_lane, position
"""
EXPIRED = f"""
SELECT {TASK_ROW} FROM taskmq_tasks t WHERE queue_id=%s AND expires_at IS NOT NULL AND state<>{RUNNING}
  AND expires_at<=%s ORDER BY expires_at, seq LIMIT %s
"""
ATTEMPT_LOGS = "SELECT seq, attempt_log FROM taskmq_tasks WHERE seq = ANY(%s::bigint[])"
UPDATE_TASKS = f"""
{given_tasks(records(TaskUpdate))}
UPDATE taskmq_tasks t SET {", ".join(f"{name}=r.{name}" for name in TaskUpdate.__struct_fields__[:-2])},
  attempt_log=coalesce(r.attempt_log, t.attempt_log), worker=NULL, started_at=NULL, batch=NULL, position=NULL,
  run_lane=NULL, started=0 FROM r WHERE t.ctid=r.place
"""
RENEW = f"""
{given_tasks(records(Renewal))}
UPDATE taskmq_tasks t SET due_at=r.due_at,
  started_at=CASE WHEN t.started=0 AND r.started THEN %s ELSE t.started_at END,
  started=CASE WHEN r.started THEN 1 ELSE t.started END, progress=coalesce(r.progress, t.progress)
FROM r WHERE t.ctid=r.place
"""
KEPT = (
    *("id", "queue_id", "seq", "priority", "aging_us", "available_at", "code", "pweight", "epoch", "max_attempts"),
    *("replays", "created_at", "retention", "handler", "handler_id", "version", "limit_key", "limit_n", "pmax"),
    *("progress", "idem_key", "key_mode", "digest", "tags", "body", "worker"),
)
GONE = (*KEPT, "started_at", "attempts", "attempt_log")


def _into_history(struct: type[msgspec.Struct], values: str, kept: str) -> str:
    """Tasks leave their table and enter the history in one statement."""
    brought = struct.__struct_fields__[1:]
    gone = f"{columns(*GONE, prefix='t.')}, {', '.join(f'r.{name} AS r_{name}' for name in brought)}"
    return f"""
{given_tasks(records(struct))},
  d AS (DELETE FROM taskmq_tasks t USING r WHERE t.ctid=r.place RETURNING {gone})
INSERT INTO taskmq_history({columns(*KEPT)}, finished_at, started_at, state, attempts, attempt_log, delete_at,
  reason, error, traceback, result)
SELECT {columns(*KEPT)}, %s, coalesce(r_started_at, started_at), {values} FROM d WHERE {kept}
"""


SUCCEED = _into_history(
    Success,
    f"{SUCCEEDED}, attempts+1, attempt_log, %s+coalesce(retention, %s), NULL, NULL, NULL, r_result",
    "coalesce(retention, 1)>0",
)
FINISH = _into_history(
    Ending,
    "r_state, r_attempts, coalesce(r_attempt_log, attempt_log), r_delete_at, r_reason, r_error, r_traceback, NULL",
    "r_delete_at IS NOT NULL",
)

# ── concurrency limits ──

LOCK_LIMITS = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))"
LIMITS_OF = """
SELECT seq, limit_key, limit_n FROM taskmq_tasks WHERE seq = ANY(%s::bigint[]) AND limit_key IS NOT NULL
"""
LIMITS_IN_LINE = f"""
SELECT handler_id, limit_key, limit_n FROM (SELECT handler_id, limit_key, limit_n, s1, s2, seq FROM taskmq_tasks
  WHERE lane=%s AND state={READY} ORDER BY s1, s2, seq LIMIT %s) l WHERE limit_key IS NOT NULL ORDER BY s1, s2, seq
"""
LIMITS_RUNNING = "SELECT limit_key, running FROM taskmq_limits WHERE namespace=%s AND limit_key = ANY(%s)"
LIMITS_PARKED = """
SELECT limit_key, handler_id, n, parked, owed, v, j FROM taskmq_parked WHERE namespace=%s AND limit_key = ANY(%s)
"""
WRITE_TURNS = f"""
{given_tasks("unnest(%s::bigint[], %s::bigint[]) r(seq, tag)")}
UPDATE taskmq_tasks t SET rtag=r.tag FROM r WHERE t.ctid=r.place
"""
MOVE = "UPDATE taskmq_tasks SET state=%s WHERE seq = ANY(%s::bigint[])"

# ── idempotency keys ──

# A look for each, as for codes. Where ANALYZE or vacuum last found pages without a row – all deleted, or uncommitted
# – the table is planned as one of one row, and a plain join was turned round: each publish read the keys of all queues.
FIND_KEYS = """
SELECT k.* FROM unnest(%s::bigint[], %s::text[]) r(queue_id, key)
CROSS JOIN LATERAL (SELECT queue_id, idem_key, task_id, digest, expires_at FROM taskmq_keys
  WHERE queue_id=r.queue_id AND idem_key=r.key LIMIT 1) k
"""
WRITE_KEYS = """
INSERT INTO taskmq_keys(queue_id, idem_key, task_id, digest, expires_at)
SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::bigint[])
ON CONFLICT (queue_id, idem_key) DO UPDATE
SET task_id=excluded.task_id, digest=excluded.digest, expires_at=excluded.expires_at
"""
# By the rows' places: of a join of the table with itself the planner, without statistics, made a walk over all keys for
# each of them. And by nothing else: planned as one of one row, the table was walked by the index of a second condition,
# over all keys whose time is over, for each batch. So what is deleted is locked before, instead of being looked at once
# more; a key that somebody takes again just now is left out.
DELETE_KEYS = """
DELETE FROM taskmq_keys WHERE ctid = ANY(ARRAY(SELECT ctid FROM taskmq_keys
  WHERE expires_at IS NOT NULL AND expires_at<=:now ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED))
"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
