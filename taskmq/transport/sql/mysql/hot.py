"""The text of the hot statements for MySQL and MariaDB.

There are no partial indexes, so the state stands in the index and in each statement as a literal. There is no UPDATE
with RETURNING, so what was claimed is read after it was marked. There is no LATERAL in MariaDB, so the heads of
several lines are a UNION.

What writes finds its rows by a join with the list of their numbers. With ``IN`` a small table is scanned, hint or no
hint, and a scan waits for rows that are none of its business, those of a user's open transaction among them.
"""

from __future__ import annotations

import msgspec

from taskmq.transport.sql.codes import COUNT_QUEUED, COUNT_RUNNING, DUE, READY, RUNNING, SUCCEEDED
from taskmq.transport.sql.fragments import BLOCK, EXPIRY, LEASE, TASK, TASK_ROW, counted, first
from taskmq.transport.sql.mysql.words import COUNTS
from taskmq.transport.sql.rows import RARELY_SET, ClaimedTask, DueTask, FlowValues, NewTask, TaskUpdate


def _columns(*names: str, prefix: str = "") -> str:
    return ", ".join(prefix + name for name in names)


_FLOW = (
    "flow_id, code, weight, tag, h1, h2, hseq, hhandler, elig, n_run, n_wait, blocked_until, blocked_seq, held_by, "
    "paused, max_running, p1, p2, pseq"
)

# ── queues ──

_WANTED = "namespace=%(namespace)s AND name IN %(names)s"
LOCK = f"""
SELECT queue_id FROM taskmq_queues FORCE INDEX (uq_taskmq_queues_name) WHERE {_WANTED} ORDER BY name FOR UPDATE
"""
"""All take their locks in the order of this index."""
QUEUES = f"""
SELECT queue_id, name, aging_us, weight, served, v, j, utag, ulive, flows, paused, max_running,
  CAST(CASE WHEN max_running IS NULL THEN 0 ELSE {counted(COUNT_RUNNING, tables=COUNTS)} END AS SIGNED), max_queued,
  CAST(CASE WHEN max_queued IS NULL THEN 0 ELSE {counted(*COUNT_QUEUED, tables=COUNTS)} END AS SIGNED),
  rate, level, level_at, limited, '[]',
  hold, lease_us, {first(TASK)}, {first(BLOCK)}, {first(LEASE)}, {first(EXPIRY)}, open_at
FROM taskmq_queues q WHERE {_WANTED} ORDER BY queue_id
"""
LOOK = f"""
SELECT queue_id, name, aging_us, weight, served, v, j, utag, ulive, flows, paused, max_running, 0, max_queued, 0,
  rate, level, level_at, limited, '[]', hold, lease_us, {first(TASK)}, {first(BLOCK)}, NULL, NULL, open_at
FROM taskmq_queues q WHERE {_WANTED} ORDER BY queue_id
"""
"""For publishes without the lock: what they do not ask is left out, for a statement is planned each time."""
HANDLERS = f"""
SELECT h.queue_id, h.handler_id, h.name, h.version, h.keyed FROM taskmq_handlers h JOIN taskmq_queues q USING (queue_id)
WHERE q.{_WANTED.replace("AND name", "AND q.name")} ORDER BY h.handler_id
"""
NEW_QUEUE = "INSERT INTO taskmq_queues(namespace, name) VALUES (%s, %s) ON DUPLICATE KEY UPDATE name=name"
NEW_GUARD = "INSERT INTO taskmq_guards(namespace, name) VALUES (%s, %s) ON DUPLICATE KEY UPDATE name=name"
WRITE_QUEUE = """
UPDATE taskmq_queues SET served=%s, v=%s, j=%s, utag=%s, ulive=%s, flows=%s, level=%s, level_at=%s, open_at=%s,
  limited=%s WHERE queue_id=%s
"""
ADD_HANDLER = "INSERT INTO taskmq_handlers(queue_id, name, version, keyed) VALUES (%s, %s, %s, %s)"
ADD_COUNTS = "INSERT INTO taskmq_counts(handler_id, kind, priority, n) VALUES {} ON DUPLICATE KEY UPDATE n=n+VALUES(n)"
ADD_DELTAS = """
INSERT INTO taskmq_count_deltas(handler_id, kind, priority, n, slot) VALUES {} ON DUPLICATE KEY UPDATE n=n+VALUES(n)
"""
DELTAS = """
SELECT handler_id, kind, priority, slot, n FROM taskmq_count_deltas WHERE slot>=16 LIMIT %s FOR UPDATE SKIP LOCKED
"""
DELETE_DELTA = "DELETE FROM taskmq_count_deltas WHERE handler_id=%s AND kind=%s AND priority=%s AND slot=%s"
GUARD_SHARED = "SELECT name FROM taskmq_guards WHERE namespace=%s AND name IN %s ORDER BY name LOCK IN SHARE MODE"
GUARD = "SELECT name FROM taskmq_guards WHERE namespace=%s AND name IN %s ORDER BY name FOR UPDATE"

# ── flows, lines ──

FLOWS_BY_CODE = f"SELECT {_FLOW} FROM taskmq_flows FORCE INDEX (uq_taskmq_flows_code) WHERE queue_id=%s AND code IN %s"
FLOWS_BY_ID = f"SELECT {_FLOW} FROM taskmq_flows WHERE flow_id IN {{}}"
FLOWS_IN_TURN = f"""
SELECT {_FLOW} FROM taskmq_flows FORCE INDEX (ix_taskmq_flows_turn) WHERE queue_id=%s AND elig=1
ORDER BY h1, k2, k3, code LIMIT %s OFFSET %s
"""
FLOWS_OF_HANDLER = f"""
SELECT {_FLOW} FROM taskmq_flows FORCE INDEX (ix_taskmq_flows_of_handler) WHERE hhandler=%s AND elig=1
ORDER BY h1, k2, k3, code LIMIT %s OFFSET %s
"""
FLOWS_DUE = f"""
SELECT {_FLOW} FROM taskmq_flows FORCE INDEX (ix_taskmq_flows_due)
WHERE queue_id=%s AND blocked_until IS NOT NULL AND blocked_until<=%s ORDER BY blocked_until, blocked_seq LIMIT %s
"""
FLOW_NAMES = FlowValues.__struct_fields__
INSERT_FLOWS = f"INSERT INTO taskmq_flows({_columns(*FLOW_NAMES)}) VALUES {{}}"
UPDATE_FLOWS = f"""
UPDATE {{}} STRAIGHT_JOIN taskmq_flows f FORCE INDEX (PRIMARY) ON f.flow_id=r.flow_id
SET {", ".join(f"f.{name}=r.{name}" for name in FLOW_NAMES[3:])}
"""
DELETE_FLOWS = "DELETE f FROM {} STRAIGHT_JOIN taskmq_flows f FORCE INDEX (PRIMARY) ON f.flow_id=r.seq"
_LINE = "s1, s2, seq, handler_id"
LINE = f"""
SELECT {_LINE} FROM taskmq_tasks FORCE INDEX (ix_taskmq_tasks_line) WHERE lane=%s AND state={READY}
ORDER BY s1, s2, seq LIMIT %s OFFSET %s
"""
HEADS = f"""
(SELECT lane, {_LINE} FROM taskmq_tasks FORCE INDEX (ix_taskmq_tasks_line) WHERE lane=%s AND state={READY}
ORDER BY s1, s2, seq LIMIT %s OFFSET %s)
"""

# ── tasks ──

NEW_SEQS = "INSERT INTO taskmq_seqs() VALUES {}"
OLD_SEQS = "DELETE s FROM {} STRAIGHT_JOIN taskmq_seqs s FORCE INDEX (PRIMARY) ON s.seq=r.seq"
SPARE_FLOW_ID = "SELECT greatest(coalesce((SELECT max(flow_id) FROM taskmq_flows), 0), 1<<61) + 1"
NEW_NAMES = NewTask.__struct_fields__
INSERT_TASKS = f"INSERT INTO taskmq_tasks({_columns(*NEW_NAMES)}) VALUES {{}}"
INSERT_USUAL = f"INSERT INTO taskmq_tasks({_columns(*NEW_NAMES[:RARELY_SET])}) VALUES {{}}"
DEFAULTS = tuple(field.default for field in msgspec.structs.fields(NewTask)[RARELY_SET:])
KNOWN_IDS = """
SELECT id FROM taskmq_tasks WHERE id IN %(ids)s UNION ALL SELECT id FROM taskmq_history WHERE id IN %(ids)s
"""
DUE_TASKS = f"""
SELECT {_columns(*DueTask._fields)} FROM taskmq_tasks FORCE INDEX (ix_taskmq_tasks_due)
WHERE queue_id=%s AND state={DUE} AND due_at<=%s ORDER BY due_at, seq LIMIT %s
"""
MAKE_READY = """
UPDATE {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq
SET t.state=r.state, t.due_at=NULL, t.lane=r.lane
"""
CLAIM = f"""
UPDATE {{}} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq
SET t.state={RUNNING}, t.due_at=%s, t.epoch=t.epoch+1, t.worker=%s, t.batch=%s, t.position=r.position, t.started=0,
  t.run_lane=CASE WHEN r.run=1 THEN t.lane END, t.progress=NULL
"""
CLAIMED = f"SELECT {_columns(*ClaimedTask.__struct_fields__)} FROM taskmq_tasks WHERE seq IN {{}}"
BY_SEQ = f"""
SELECT {TASK_ROW} FROM taskmq_tasks t WHERE seq IN {{}}
  AND t.queue_id IN (SELECT queue_id FROM taskmq_queues WHERE namespace=%s)
"""
RUN_MATES = f"SELECT {TASK_ROW} FROM taskmq_tasks t WHERE run_lane IN {{}} ORDER BY run_lane, s1, s2, seq"
LAST_END = f"""
SELECT due_at FROM taskmq_tasks WHERE queue_id=%s AND state={RUNNING} AND due_at<=%s ORDER BY due_at LIMIT 1 OFFSET %s
"""
ENDED_LEASES = f"""
SELECT {TASK_ROW} FROM taskmq_tasks t WHERE queue_id=%s AND state={RUNNING} AND due_at<=%s ORDER BY t.due_at, seq
"""
IN_HANDS = f"""
SELECT batch, run_lane, position, seq FROM taskmq_tasks WHERE queue_id=%s AND state={RUNNING} AND batch IN {{}}
"""
EXPIRED = f"""
SELECT {TASK_ROW} FROM taskmq_tasks t WHERE queue_id=%s AND expires_at IS NOT NULL AND state<>{RUNNING}
  AND expires_at<=%s ORDER BY expires_at, seq LIMIT %s
"""
ATTEMPT_LOGS = "SELECT seq, attempt_log FROM taskmq_tasks WHERE seq IN {}"
UPDATE_NAMES = TaskUpdate.__struct_fields__
UPDATE_TASKS = f"""
UPDATE {{}} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq
SET {", ".join(f"t.{name}=r.{name}" for name in UPDATE_NAMES[:-2])},
  t.attempt_log=coalesce(r.attempt_log, t.attempt_log), t.worker=NULL, t.started_at=NULL, t.batch=NULL, t.position=NULL,
  t.run_lane=NULL, t.started=0
"""
# The order of assignments over several tables is not promised: what depends on the old value comes before.
RENEW = (
    "UPDATE {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq SET t.started_at=%s WHERE t.started=0",
    "UPDATE {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq SET t.started=1",
    """UPDATE {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq
    SET t.due_at=r.due_at, t.progress=coalesce(r.progress, t.progress)""",
)
_KEPT = (
    *("id", "queue_id", "seq", "priority", "aging_us", "available_at", "code", "pweight", "epoch", "max_attempts"),
    *("replays", "created_at", "retention", "handler", "handler_id", "version", "limit_key", "limit_n", "pmax"),
    *("progress", "idem_key", "key_mode", "digest", "tags", "body", "worker"),
)
_INTO_HISTORY = f"""
INSERT INTO taskmq_history({_columns(*_KEPT)}, finished_at, started_at, state, attempts, attempt_log, delete_at,
  reason, error, traceback, result)
SELECT {_columns(*_KEPT, prefix="t.")}, %s, coalesce(r.started_at, t.started_at), """
_FROM = " FROM {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq WHERE "
SUCCEED = (
    f"{_INTO_HISTORY}{SUCCEEDED}, t.attempts+1, t.attempt_log, %s+coalesce(t.retention, %s), NULL, NULL, NULL, r.result"
    f"{_FROM}coalesce(t.retention, 1)>0"
)
FINISH = (
    f"{_INTO_HISTORY}r.state, r.attempts, coalesce(r.attempt_log, t.attempt_log), r.delete_at, r.reason, r.error, "
    f"r.traceback, NULL{_FROM}r.delete_at IS NOT NULL"
)
DELETE_TASKS = "DELETE t FROM {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq"

# ── concurrency limits ──

LIMITS_OF = "SELECT seq, limit_key, limit_n FROM taskmq_tasks WHERE seq IN {} AND limit_key IS NOT NULL"
LIMITS_IN_LINE = f"""
SELECT handler_id, limit_key, limit_n FROM taskmq_tasks FORCE INDEX (ix_taskmq_tasks_line)
WHERE lane=%s AND state={READY} ORDER BY s1, s2, seq LIMIT %s
"""
LIMITS_RUNNING = "SELECT limit_key, running FROM taskmq_limits WHERE namespace=%s AND limit_key IN %s"
LIMITS_PARKED = """
SELECT limit_key, handler_id, n, parked, owed, v, j FROM taskmq_parked WHERE namespace=%s AND limit_key IN %s
"""
WRITE_TURNS = "UPDATE {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq SET t.rtag=r.tag"
MOVE = "UPDATE {} STRAIGHT_JOIN taskmq_tasks t FORCE INDEX (PRIMARY) ON t.seq=r.seq SET t.state=%s"

# ── idempotency keys ──

FIND_KEYS = "SELECT queue_id, idem_key, task_id, digest, expires_at FROM taskmq_keys WHERE "
WRITE_KEYS = """
INSERT INTO taskmq_keys(queue_id, idem_key, task_id, digest, expires_at) VALUES {}
ON DUPLICATE KEY UPDATE task_id=VALUES(task_id), digest=VALUES(digest), expires_at=VALUES(expires_at)
"""
TAKE_LOCK = """
INSERT INTO taskmq_locks(name, owner, expires_at) VALUES (%(name)s, %(owner)s, %(until)s)
ON DUPLICATE KEY UPDATE owner=IF(owner=VALUES(owner) OR expires_at<=%(now)s, VALUES(owner), owner),
  expires_at=IF(owner=VALUES(owner), VALUES(expires_at), expires_at)
"""
HOLDER = "SELECT owner FROM taskmq_locks WHERE name=%s"
WRITE_WORKER = """
INSERT INTO taskmq_workers(id, namespace, info, expires_at) VALUES (:id, :namespace, :info, :until)
ON DUPLICATE KEY UPDATE info=VALUES(info), expires_at=VALUES(expires_at)
"""
DELETE_KEYS = """
DELETE FROM taskmq_keys WHERE expires_at IS NOT NULL AND expires_at<=:now ORDER BY expires_at LIMIT :limit
"""
PAUSE = "UPDATE taskmq_queues SET paused=:paused WHERE namespace=:namespace AND name=:name"
NOW = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
