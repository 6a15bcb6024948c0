"""The short way's statements on PostgreSQL: what short.py says of plain tasks and queues, decided by the server."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import msgspec

from taskmq.transport.base import Reserve
from taskmq.transport.sql.codes import COUNT_READY, COUNT_RUNNING, COUNT_SCHEDULED, DUE, READY, RUNNING, SUCCEEDED
from taskmq.transport.sql.fragments import BLOCK, EXPIRY, LEASE, TASK, counted, first
from taskmq.transport.sql.postgresql.exchange import Parameters, Sent
from taskmq.transport.sql.postgresql.hot import (
    CLAIMED,
    GONE,
    GUARD_SHARED,
    KEPT,
    columns,
    given_tasks,
    record_columns,
    records,
)
from taskmq.transport.sql.postgresql.words import COUNTS
from taskmq.transport.sql.rows import ClaimedTask, PlainClaim, PlainSuccess, PlainTask
from taskmq.transport.sql.ways import Promise

_RUNS = f"state+0={RUNNING}"
SUCCEED_PLAIN = f"""
{
    given_tasks(
        records(PlainSuccess),
        f" AND g.id||''=r.id AND g.epoch=r.epoch AND g.{_RUNS} AND g.code IS NULL AND g.limit_key IS NULL"
        " AND g.idem_key IS NULL AND g.queue_id = ANY(ARRAY("
        "SELECT queue_id FROM taskmq_queues WHERE namespace=%s AND name = ANY(%s)))",
    )
},
  d AS (DELETE FROM taskmq_tasks t USING r WHERE t.ctid=r.place AND t.epoch=r.epoch AND t.{_RUNS}
    RETURNING {columns(*GONE, prefix="t.")}, r.started_at AS r_started_at, r.result AS r_result),
  n AS (INSERT INTO taskmq_count_deltas AS c(handler_id, kind, priority, n, slot)
    SELECT handler_id, {COUNT_RUNNING}, priority, -count(*), %s FROM d GROUP BY handler_id, priority
    ON CONFLICT (handler_id, kind, priority, slot) DO UPDATE SET n=c.n+excluded.n),
  h AS (INSERT INTO taskmq_history({columns(*KEPT)}, finished_at, started_at, state, attempts, attempt_log, delete_at,
      result)
    SELECT {columns(*KEPT)}, %s, coalesce(r_started_at, started_at), {SUCCEEDED}, attempts+1, attempt_log,
      %s+coalesce(retention, %s), r_result FROM d WHERE coalesce(retention, 1)>0)
SELECT seq FROM d
"""
"""Who has locked a task meanwhile may have changed it: then its epoch or state says so when the wait is over."""
CLAIM_PLAIN = f"""
WITH q AS MATERIALIZED (SELECT queue_id, aging_us, lease_us, {first(TASK)} AS due_at, {first(LEASE)} AS lease_end,
    {first(EXPIRY)} AS expire_at, CASE WHEN max_running IS NULL THEN %(limit)s
      ELSE least(%(limit)s, greatest(0, max_running-{counted(COUNT_RUNNING, tables=COUNTS)})) END AS room
  FROM taskmq_queues q WHERE namespace=%(namespace)s AND name=%(name)s
    AND paused=0 AND flows=0 AND limited=0 AND rate IS NULL),
  ok AS MATERIALIZED (SELECT * FROM q WHERE coalesce(least(due_at, lease_end, expire_at)>%(now)s, true)),
  r AS MATERIALIZED (SELECT y.*, row_number() OVER ()-1 AS place FROM (SELECT l.* FROM ok
      JOIN taskmq_handlers h USING (queue_id) CROSS JOIN LATERAL (SELECT t.ctid AS tid, s1, s2, seq FROM taskmq_tasks t
        WHERE t.lane=-h.handler_id AND t.state={READY} ORDER BY s1, s2, seq LIMIT %(limit)s) l
    ORDER BY s1, s2, seq LIMIT (SELECT room FROM ok)) y),
  c AS (UPDATE taskmq_tasks t SET state={RUNNING}, due_at=%(now)s+coalesce((SELECT lease_us FROM ok), %(lease)s),
    epoch=epoch+1, worker=%(worker)s, batch=%(batch)s, position=r.place, started=0, run_lane=NULL, progress=NULL
    FROM r WHERE t.ctid=r.tid RETURNING r.place, {columns(*CLAIMED, prefix="t.")}),
  n AS (INSERT INTO taskmq_counts AS k(handler_id, kind, priority, n)
    SELECT handler_id, v.kind, priority, sum(v.more) FROM c
    CROSS JOIN (VALUES ({COUNT_READY}, -1), ({COUNT_RUNNING}, 1)) v(kind, more) GROUP BY handler_id, v.kind, priority
    ON CONFLICT (handler_id, kind, priority) DO UPDATE SET n=k.n+excluded.n),
  u AS (UPDATE taskmq_queues SET served=served+(SELECT count(*) FROM c)
    WHERE queue_id=(SELECT queue_id FROM ok) AND EXISTS (SELECT 1 FROM c))
SELECT ok.aging_us, ok.lease_us, ok.due_at, ok.lease_end, c.* FROM ok LEFT JOIN c ON true
"""

_PLAIN = PlainTask.__struct_fields__
_KEPT = ("id", "priority", "available_at", "max_attempts", "body", "handler", *_PLAIN[8:])
PUBLISH_PLAIN = f"""
WITH r AS MATERIALIZED (SELECT * FROM ROWS FROM (json_to_recordset(%(rows)s::json) AS ({record_columns(PlainTask)}))
    WITH ORDINALITY AS r({columns(*_PLAIN, "n")})),
  q AS MATERIALIZED (SELECT queue_id, name, aging_us FROM taskmq_queues q
    WHERE namespace=%(namespace)s AND name = ANY(%(names)s) AND max_queued IS NULL AND (flows=0 OR ulive=1)
      AND coalesce(least({first(TASK)}, {first(BLOCK)})>%(now)s, true)),
  t AS MATERIALIZED (SELECT r.*, q.queue_id, q.aging_us, h.handler_id, r.available_at<=%(now)s AS ready FROM r
    JOIN q ON q.name=r.queue JOIN taskmq_handlers h
      ON h.queue_id=q.queue_id AND h.name=r.handler AND h.version=r.version AND h.keyed=0),
  ok AS MATERIALIZED (SELECT 1 WHERE (SELECT count(*) FROM t WHERE code IS NULL OR NOT ready)=(SELECT count(*) FROM r)
    AND NOT EXISTS (SELECT 1 FROM taskmq_tasks WHERE id = ANY(%(ids)s))
    AND NOT EXISTS (SELECT 1 FROM taskmq_history WHERE id = ANY(%(ids)s))),
  i AS (INSERT INTO taskmq_tasks(seq, {columns(*_KEPT)}, queue_id, aging_us, handler_id, version, created_at, state,
      lane, due_at)
    SELECT nextval('taskmq_seq'), {columns(*_KEPT)}, queue_id, aging_us, handler_id, nullif(version, ''), %(now)s,
      CASE WHEN ready THEN {READY} ELSE {DUE} END, CASE WHEN ready THEN -handler_id END,
      CASE WHEN NOT ready THEN available_at END
    FROM (SELECT * FROM t WHERE EXISTS (SELECT 1 FROM ok) ORDER BY n) t RETURNING handler_id, state, priority),
  d AS (INSERT INTO taskmq_count_deltas AS c(handler_id, kind, priority, n, slot)
    SELECT handler_id, CASE state WHEN {READY} THEN {COUNT_READY} ELSE {COUNT_SCHEDULED} END, priority, count(*),
      %(slot)s FROM i GROUP BY 1, 2, 3 ON CONFLICT (handler_id, kind, priority, slot) DO UPDATE SET n=c.n+excluded.n)
SELECT count(*) FROM i
"""


class PlainStatements:
    """What a session has of the short way."""

    namespace: str
    slots: range

    def _later(self, statement: str, parameters: Parameters = ()) -> Sent:
        raise NotImplementedError

    def publish_plain(self, rows: Sequence[PlainTask], now: int) -> Promise[bool]:
        """Store plain tasks."""
        names = sorted({row.queue for row in rows})
        self._later(GUARD_SHARED, ([f"{self.namespace}:{name}" for name in names],))
        parameters = {
            "rows": msgspec.json.encode(rows).decode(),
            "namespace": self.namespace,
            "names": names,
            "ids": [row.id for row in rows],
            "now": now,
            "slot": random.choice(self.slots),
        }
        stored = self._later(PUBLISH_PLAIN, parameters)
        return lambda: bool(stored.rows[0][0])

    def succeed_plain(
        self, rows: Sequence[PlainSuccess], queues: Collection[str], now: int, keep: int
    ) -> Promise[set[int]]:
        """Move plain tasks to the history."""
        if not rows:
            return set
        slot = random.choice(self.slots)
        items = msgspec.json.encode(rows).decode()
        gone = self._later(SUCCEED_PLAIN, (self.namespace, list(queues), items, slot, now, now, keep))
        return lambda: {row[0] for row in gone.rows}

    def claim_plain(self, claim: Reserve, batch: int, now: int) -> Promise[PlainClaim | None]:
        """Claim from a plain queue."""
        parameters = {
            "namespace": self.namespace,
            "name": claim.queues[0],
            "limit": claim.limit,
            "worker": claim.worker,
            "lease": claim.lease,
            "batch": batch,
            "now": now,
        }
        sent = self._later(CLAIM_PLAIN, parameters)

        def answer() -> PlainClaim | None:
            rows = sent.rows
            if not rows:
                return None
            rows.sort(key=lambda row: row[4])  # by its place in the claim
            tasks = [ClaimedTask(*row[5:]) for row in rows if row[4] is not None]
            return PlainClaim(tasks, *rows[0][:4])

        return answer
