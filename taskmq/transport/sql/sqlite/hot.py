"""The statements that every publish, claim and settle sends, in SQLite's words: rows travel as JSON (session.py)."""

from __future__ import annotations

from collections.abc import Sequence

from taskmq.transport.sql.codes import COUNT_QUEUED, COUNT_RUNNING, DUE, READY, RUNNING, SUCCEEDED
from taskmq.transport.sql.fragments import BLOCK, EXPIRY, LEASE, TASK, TASK_ROW, counted, first
from taskmq.transport.sql.rows import RARELY_SET, ClaimedTask, DueTask, NewTask, TaskRow, TaskUpdate


def _columns(*names: str, prefix: str = "") -> str:
    return ", ".join(prefix + name for name in names)


def _fields(count: int, first: int = 0) -> str:
    """The elements of a JSON row, one by one."""
    return ", ".join(f"json_extract(j.value, '$[{i}]')" for i in range(first, first + count))


def _as_json(columns: str, source: str) -> str:
    """A query whose rows come as one JSON value."""
    return f"SELECT json_group_array(json_array({columns})) FROM ({source})"


_FLOW = (
    "flow_id, code, weight, tag, h1, h2, hseq, hhandler, elig, n_run, n_wait, blocked_until, blocked_seq, held_by, "
    "paused, max_running, p1, p2, pseq"
)
_TASK_NAMES = _columns(*TaskRow.__struct_fields__)
_CLAIMED_T = _columns(*ClaimedTask.__struct_fields__, prefix="t.")

LOCK_QUEUES = f"""
SELECT queue_id, name, aging_us, weight, served, v, j, utag, ulive, flows, paused, max_running,
  CASE WHEN max_running IS NULL THEN 0 ELSE {counted(COUNT_RUNNING)} END, max_queued,
  CASE WHEN max_queued IS NULL THEN 0 ELSE {counted(*COUNT_QUEUED)} END, rate, level, level_at, limited,
  (SELECT json_group_array(json_array(handler_id, h.name, version, keyed)) FROM taskmq_handlers h
    WHERE h.queue_id=q.queue_id),
  hold, lease_us,
  {first(TASK)}, {first(BLOCK)}, {first(LEASE)}, {first(EXPIRY)},
  open_at
FROM taskmq_queues q WHERE namespace=:namespace AND name IN (SELECT value FROM json_each(:names)) ORDER BY queue_id
"""
NEW_QUEUES = """
INSERT INTO taskmq_queues(namespace, name) SELECT ?, value FROM json_each(?) WHERE true ON CONFLICT DO NOTHING
"""
WRITE_QUEUE = """
UPDATE taskmq_queues SET served=?, v=?, j=?, utag=?, ulive=?, flows=?, level=?, level_at=?, open_at=?, limited=?
WHERE queue_id=?
"""
ADD_HANDLER = "INSERT INTO taskmq_handlers(queue_id, name, version, keyed) VALUES (?, ?, ?, ?) RETURNING handler_id"

FLOWS_BY_CODE = _as_json(
    _FLOW, f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND code IN (SELECT value FROM json_each(?))"
)
FLOWS_BY_ID = _as_json(_FLOW, f"SELECT {_FLOW} FROM taskmq_flows WHERE flow_id IN (SELECT value FROM json_each(?))")
FLOWS_IN_TURN = _as_json(
    _FLOW,
    f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND elig=1 ORDER BY h1, k2, k3, code LIMIT ? OFFSET ?",
)
FLOWS_OF_HANDLER = _as_json(
    _FLOW,
    f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND hhandler=? AND elig=1 "
    "ORDER BY h1, k2, k3, code LIMIT ? OFFSET ?",
)
FLOWS_DUE = _as_json(
    _FLOW,
    f"SELECT {_FLOW} FROM taskmq_flows WHERE queue_id=? AND blocked_until IS NOT NULL AND blocked_until<=? "
    "ORDER BY blocked_until, blocked_seq LIMIT ?",
)
_FLOW_WRITTEN = (
    "h1, h2, hseq, hhandler, k2, k3, tag, weight, elig, n_run, n_wait, blocked_until, blocked_seq, held_by, paused, "
    "max_running, p1, p2, pseq"
)
INSERT_FLOWS = f"""
INSERT INTO taskmq_flows(flow_id, queue_id, code, {_FLOW_WRITTEN}) SELECT {_fields(22)} FROM json_each(?) j
"""
UPDATE_FLOWS = f"""
UPDATE taskmq_flows SET ({_FLOW_WRITTEN}) = (SELECT {_fields(19, 3)})
FROM json_each(?) j WHERE flow_id=json_extract(j.value, '$[0]')
"""
DELETE_FLOWS = "DELETE FROM taskmq_flows WHERE flow_id IN (SELECT value FROM json_each(?))"

_LINE = "s1, s2, seq, handler_id"
LINE = _as_json(
    _LINE,
    f"SELECT {_LINE} FROM taskmq_tasks WHERE lane=? AND state={READY} ORDER BY s1, s2, seq LIMIT ? OFFSET ?",
)
_HEADS_OF_LANE = _as_json(
    _LINE,
    f"SELECT {_LINE} FROM taskmq_tasks WHERE lane=f.value AND state={READY} ORDER BY s1, s2, seq LIMIT :k OFFSET :skip",
)
HEADS = f"SELECT json_group_array(json_array(f.value, json(({_HEADS_OF_LANE})))) FROM json_each(:lanes) f"

NEXT_SEQ = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name='taskmq_tasks'), 0) + 1"
SPARE_FLOW_ID = "SELECT max(coalesce((SELECT max(flow_id) FROM taskmq_flows), 0), 1<<61) + 1"
ROWS = 20
"""Rows of one INSERT: 2.6 times as fast as ``executemany``, whose cost is the binding, step and reset of each row."""


def _insert_tasks(columns: Sequence[str], rows: int) -> str:
    values = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO taskmq_tasks({_columns(*columns)}) VALUES {', '.join([values] * rows)}"


_COLUMNS = NewTask.__struct_fields__
DEFAULTS = NewTask.__struct_defaults__[RARELY_SET - len(_COLUMNS) :]
USUAL = (_insert_tasks(_COLUMNS[:RARELY_SET], ROWS), _insert_tasks(_COLUMNS[:RARELY_SET], 1))
FULL = (_insert_tasks(_COLUMNS, ROWS), _insert_tasks(_COLUMNS, 1))
KNOWN_IDS = """
SELECT id FROM taskmq_tasks WHERE id IN (SELECT value FROM json_each(?1))
UNION SELECT id FROM taskmq_history WHERE id IN (SELECT value FROM json_each(?1))
"""
_DUE = _columns(*DueTask._fields)
DUE_TASKS = _as_json(
    _DUE,
    f"SELECT {_DUE} FROM taskmq_tasks WHERE queue_id=? AND state={DUE} AND due_at<=? ORDER BY due_at, seq LIMIT ?",
)
MAKE_READY = """
UPDATE taskmq_tasks SET state=json_extract(j.value, '$[2]'), due_at=NULL, lane=json_extract(j.value, '$[1]')
FROM json_each(?) j WHERE seq=json_extract(j.value, '$[0]')
"""
CLAIM = f"""
UPDATE taskmq_tasks SET state={RUNNING}, due_at=:until, epoch=epoch+1, worker=:worker, batch=:batch, position=j.key,
  started=0, run_lane=NULL, progress=NULL
FROM json_each(:seqs) j WHERE seq=j.value
"""
MARK_RUNS = """
UPDATE taskmq_tasks SET run_lane=lane WHERE seq IN (SELECT value FROM json_each(?))
"""
CLAIMED_ROWS = (
    f"SELECT json_group_array(json_array({_CLAIMED_T})) FROM json_each(?) j CROSS JOIN taskmq_tasks t ON t.seq=j.value"
)
BY_SEQ = _as_json(
    _TASK_NAMES,
    f"SELECT {TASK_ROW} FROM json_each(?) j CROSS JOIN taskmq_tasks t ON t.seq=j.value "
    "WHERE t.queue_id IN (SELECT queue_id FROM taskmq_queues WHERE namespace=?)",
)
RUN_MATES = _as_json(
    _TASK_NAMES,
    f"SELECT {TASK_ROW} FROM taskmq_tasks t WHERE run_lane IS NOT NULL "
    "AND run_lane IN (SELECT value FROM json_each(?)) ORDER BY run_lane, s1, s2, seq",
)
ENDED_LEASES = _as_json(
    _TASK_NAMES,
    f"SELECT {TASK_ROW} FROM taskmq_tasks t WHERE queue_id=:queue AND state={RUNNING} AND due_at<=coalesce("
    f"(SELECT due_at FROM taskmq_tasks WHERE queue_id=:queue AND state={RUNNING} AND due_at<=:now "
    "ORDER BY due_at LIMIT 1 OFFSET :last), :now) ORDER BY due_at, seq",
)
FIRST_IN_HANDS = f"""
SELECT seq, min(position) FROM taskmq_tasks
WHERE queue_id=? AND state={RUNNING} AND batch IN (SELECT value FROM json_each(?)) GROUP BY batch, run_lane
"""
EXPIRED = _as_json(
    _TASK_NAMES,
    f"SELECT {TASK_ROW} FROM taskmq_tasks t WHERE queue_id=? AND expires_at IS NOT NULL AND state<>{RUNNING} "
    "AND expires_at<=? ORDER BY expires_at, seq LIMIT ?",
)
ATTEMPT_LOGS = """
SELECT json_group_array(json_array(t.seq, t.attempt_log))
FROM json_each(?) j CROSS JOIN taskmq_tasks t ON t.seq=j.value
"""
UPDATE_TASK = f"""
UPDATE taskmq_tasks SET {", ".join(f"{name}=?" for name in TaskUpdate.__struct_fields__[:-2])},
  attempt_log=coalesce(?, attempt_log), worker=NULL, started_at=NULL, batch=NULL, position=NULL, run_lane=NULL,
  started=0 WHERE seq=?
"""
RENEW = """
UPDATE taskmq_tasks SET due_at=json_extract(j.value, '$[1]'),
  started_at=CASE WHEN started=0 AND json_extract(j.value, '$[2]') THEN :now ELSE started_at END,
  started=max(started, json_extract(j.value, '$[2]')), progress=coalesce(json_extract(j.value, '$[3]'), progress)
FROM json_each(:rows) j WHERE seq=json_extract(j.value, '$[0]')
"""
_KEPT = (
    *("id", "queue_id", "seq", "priority", "aging_us", "available_at", "code", "pweight", "epoch", "max_attempts"),
    *("replays", "created_at", "retention", "handler", "handler_id", "version", "limit_key", "limit_n", "pmax"),
    *("progress", "idem_key", "key_mode", "digest", "tags", "body", "worker"),
)
_INTO_HISTORY = f"""
INSERT INTO taskmq_history({_columns(*_KEPT)}, finished_at, state, attempts, attempt_log, delete_at,
  reason, error, traceback, started_at, result)
SELECT {_columns(*_KEPT, prefix="t.")}, :now"""
FINISH = f"""{_INTO_HISTORY}, json_extract(j.value, '$[1]'), json_extract(j.value, '$[2]'),
  coalesce(json_extract(j.value, '$[3]'), t.attempt_log), {_fields(4, 4)},
  coalesce(json_extract(j.value, '$[8]'), t.started_at), NULL
FROM json_each(:rows) j CROSS JOIN taskmq_tasks t ON t.seq=json_extract(j.value, '$[0]')
WHERE json_extract(j.value, '$[4]') IS NOT NULL
"""
_SUCCEEDED = f"""{_INTO_HISTORY}, {SUCCEEDED}, t.attempts+1, t.attempt_log, :now+coalesce(t.retention, :keep),
  NULL, NULL, NULL, coalesce(json_extract(j.value, '$[1]'), t.started_at), """
SUCCEED = f"""{_SUCCEEDED}json_extract(j.value, '$[2]')
FROM json_each(:rows) j CROSS JOIN taskmq_tasks t ON t.seq=json_extract(j.value, '$[0]')
WHERE coalesce(t.retention, 1)>0
"""
DELETE_TASKS = "DELETE FROM taskmq_tasks WHERE seq IN (SELECT value FROM json_each(?))"

LIMITS_OF = _as_json(
    "seq, limit_key, limit_n",
    "SELECT seq, limit_key, limit_n FROM taskmq_tasks WHERE seq IN (SELECT value FROM json_each(?)) "
    "AND limit_key IS NOT NULL",
)
LIMITS_IN_LINE = _as_json(
    "handler_id, limit_key, limit_n",
    f"SELECT * FROM (SELECT * FROM taskmq_tasks WHERE lane=? AND state={READY} ORDER BY s1, s2, seq LIMIT ?) "
    "WHERE limit_key IS NOT NULL ORDER BY s1, s2, seq",
)
LIMITS_RUNNING = """
SELECT json_group_array(json_array(limit_key, running)) FROM taskmq_limits
WHERE namespace=? AND limit_key IN (SELECT value FROM json_each(?))
"""
LIMITS_PARKED = """
SELECT json_group_array(json_array(limit_key, handler_id, n, parked, owed, v, j)) FROM taskmq_parked
WHERE namespace=? AND limit_key IN (SELECT value FROM json_each(?))
"""
WRITE_TURNS = """
UPDATE taskmq_tasks SET rtag=json_extract(j.value, '$[1]') FROM json_each(?) j WHERE seq=json_extract(j.value, '$[0]')
"""
MOVE = "UPDATE taskmq_tasks SET state=? WHERE seq IN (SELECT value FROM json_each(?))"

FIND_KEYS = """
SELECT json_group_array(json_array(k.queue_id, k.idem_key, k.task_id, k.digest, k.expires_at))
FROM json_each(?) j CROSS JOIN taskmq_keys k
  ON k.queue_id=json_extract(j.value, '$[0]') AND k.idem_key=json_extract(j.value, '$[1]')
"""
WRITE_KEYS = f"INSERT OR REPLACE INTO taskmq_keys SELECT {_fields(5)} FROM json_each(?) j"


ADD_COUNT = """
INSERT INTO taskmq_counts(handler_id, kind, priority, n) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n=n+excluded.n
"""
