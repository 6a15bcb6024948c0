"""SQLite's wording of the statements that are not on the hot path: settings, operators, housekeeping."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

import msgspec

from taskmq.errors import InvalidArgument
from taskmq.queue import QueueConfig, Rate
from taskmq.transport.sql.codes import COUNT_DEAD, FAILED, KEY_WITH_TTL, RUNNING
from taskmq.transport.sql.dialect import DeadLetter, Place, QueueRow

FREE_KEYS = "DELETE FROM taskmq_keys WHERE queue_id=? AND idem_key=? AND task_id=?"
QUEUE_CONFIGS = """
SELECT name, config FROM taskmq_queues WHERE namespace=? AND name IN (SELECT value FROM json_each(?))
"""
CONFIGURE = """
UPDATE taskmq_queues SET aging_us=:aging, weight=:weight, max_running=:max_running, max_queued=:max_queued, hold=:hold,
  lease_us=:lease, paused=:paused, config=:config,
  level=CASE WHEN rate IS :rate THEN level END, open_at=CASE WHEN rate IS :rate THEN open_at END, rate=:rate
WHERE queue_id=:queue
"""
_RECORD = "h.id, h.queue_id, h.idem_key, h.key_mode, h.handler_id, h.priority, h.state"
OLD_TASKS = f"SELECT {_RECORD} FROM taskmq_history h WHERE delete_at<=? ORDER BY delete_at LIMIT ?"
DELETE_HISTORY = "DELETE FROM taskmq_history WHERE id IN (SELECT value FROM json_each(?))"
DELETE_KEYS = """
DELETE FROM taskmq_keys WHERE (queue_id, idem_key) IN (SELECT queue_id, idem_key FROM taskmq_keys
  WHERE expires_at IS NOT NULL AND expires_at<=? ORDER BY expires_at LIMIT ?)
"""
TAKE_LOCK = """
INSERT INTO taskmq_locks(name, owner, expires_at) VALUES (:name, :owner, :until)
ON CONFLICT(name) DO UPDATE SET owner=:owner, expires_at=:until WHERE owner=:owner OR expires_at<=:now
"""
DROP_LOCK = "DELETE FROM taskmq_locks WHERE name=? AND owner=?"
WRITE_WORKER = "INSERT OR REPLACE INTO taskmq_workers(id, namespace, info, expires_at) VALUES (?, ?, ?, ?)"
FORGET_WORKER = "DELETE FROM taskmq_workers WHERE id=? AND namespace=?"
DELETE_WORKERS = "DELETE FROM taskmq_workers WHERE expires_at<=?"
UNFINISHED = """
SELECT t.id, t.seq, q.name FROM taskmq_tasks t JOIN taskmq_queues q USING (queue_id)
WHERE t.id IN (SELECT value FROM json_each(?)) AND namespace=?
"""
REQUEST_CANCEL = f"UPDATE taskmq_tasks SET cancel_requested=1 WHERE seq=? AND state={RUNNING}"
DEAD_LETTER = f"""
SELECT seq, available_at, q.name, h.queue_id, code, pweight, pmax, priority, handler_id, handler, version,
  limit_key, limit_n, idem_key, key_mode, digest
FROM taskmq_history h JOIN taskmq_queues q USING (queue_id) WHERE h.id=? AND h.state={FAILED} AND namespace=?
"""
REVIVE = """
INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, priority, aging_us, available_at, code, pweight, pmax, epoch,
  max_attempts, replays, created_at, retention, handler, handler_id, version, limit_key, limit_n, idem_key, key_mode,
  digest, tags, attempt_log, body)
SELECT :seq, id, :queue, :state, :lane, priority, :aging, :available_at, code, pweight, pmax, epoch, max_attempts,
  replays+1, created_at, retention, handler, :handler, version, limit_key, limit_n, idem_key, key_mode, digest,
  tags, attempt_log, body FROM taskmq_history WHERE id=:id
"""
DELETE_ENDED = "DELETE FROM taskmq_history WHERE id=?"
PURGED = f"""
SELECT {_RECORD} FROM taskmq_history h JOIN taskmq_queues q USING (queue_id)
WHERE h.id IN (SELECT value FROM json_each(?)) AND namespace=?
"""
HELD = """
SELECT held_by, q.name, code FROM taskmq_flows f JOIN taskmq_queues q USING (queue_id)
WHERE namespace=? AND held_by IN (SELECT value FROM json_each(?))
  AND EXISTS (SELECT 1 FROM taskmq_history h WHERE h.id=held_by)
"""
PAUSE = """
INSERT INTO taskmq_queues(namespace, name, paused) VALUES (?, ?, ?)
ON CONFLICT(namespace, name) DO UPDATE SET paused=excluded.paused
"""
_OF_NAMESPACE = "queue_id IN (SELECT queue_id FROM taskmq_queues WHERE namespace=?)"
_OF_HANDLERS = f"handler_id IN (SELECT handler_id FROM taskmq_handlers WHERE {_OF_NAMESPACE})"
FLUSH = (
    f"DELETE FROM taskmq_counts WHERE {_OF_HANDLERS}",
    *(
        f"DELETE FROM taskmq_{table} WHERE {_OF_NAMESPACE}"
        for table in ("tasks", "flows", "history", "keys", "handlers")
    ),
    *(f"DELETE FROM taskmq_{table} WHERE namespace=?" for table in ("workers", "limits", "parked")),
    "DELETE FROM taskmq_locks WHERE substr(name, 1, length(?1)+1)=?1 || ':'",
    "DELETE FROM taskmq_queues WHERE namespace=?",
)

QUEUE_ID = "SELECT queue_id FROM taskmq_queues WHERE namespace=? AND name=?"
HAS_TASKS = "SELECT 1 FROM taskmq_tasks WHERE queue_id=? LIMIT 1"
DELETE_QUEUE = (
    "DELETE FROM taskmq_counts WHERE handler_id IN (SELECT handler_id FROM taskmq_handlers WHERE queue_id=?)",
    *(f"DELETE FROM taskmq_{table} WHERE queue_id=?" for table in ("flows", "history", "keys", "handlers", "queues")),
)


def counted(*kinds: int) -> str:
    """How many tasks of these kinds the queue ``q`` has."""
    wanted = ", ".join(map(str, kinds))
    return f"""(SELECT coalesce(sum(n), 0) FROM taskmq_handlers h JOIN taskmq_counts c USING (handler_id)
    WHERE h.queue_id=q.queue_id AND kind IN ({wanted}))"""


ADD_COUNT = """
INSERT INTO taskmq_counts(handler_id, kind, priority, n) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n=n+excluded.n
"""


def as_json_list(values: Iterable[Any]) -> str:
    """A JSON parameter."""
    return msgspec.json.encode(list(values)).decode()


class Rare:
    """The rare statements of a session."""

    def __init__(self, connection: sqlite3.Connection, namespace: str) -> None:
        self.namespace = namespace
        self._run = connection.execute
        self._run_many = connection.executemany

    def queue_configs(self, names: Sequence[str]) -> dict[str, QueueConfig]:
        """The settings of queues that were configured."""
        rows = self._run(QUEUE_CONFIGS, (self.namespace, as_json_list(names)))
        return {name: decode_config(config) for name, config in rows if config is not None}

    def configure(self, queue_id: int, config: QueueConfig) -> None:
        """Store settings. A new rate starts with a full bucket."""
        values = {
            "aging": config.aging_us,
            "weight": config.weight,
            "max_running": config.max_running,
            "max_queued": config.max_queued,
            "hold": config.on_dead == "hold",
            "lease": config.lease_us,
            "paused": config.paused,
            "config": msgspec.json.encode(asdict(config)).decode(),
            "rate": None if config.rate is None else msgspec.json.encode(config.rate).decode(),
            "queue": queue_id,
        }
        self._run(CONFIGURE, values)

    def delete_old(self, now: int, limit: int) -> int:
        """Delete ended tasks whose retention is over, with their keys; and keys and workers whose own time is over."""
        old = self._run(OLD_TASKS, (now, limit)).fetchall()
        self._forget(old)
        if old:
            self._run(DELETE_HISTORY, (as_json_list(row[0] for row in old),))
        self._run(DELETE_KEYS, (now, limit))
        self._run(DELETE_WORKERS, (now,))
        return len(old)

    def take_lock(self, name: str, owner: str, now: int, ttl: int) -> bool:
        """Take or renew a named lease."""
        parameters = {"name": self._scoped(name), "owner": owner, "until": now + ttl, "now": now}
        return self._run(TAKE_LOCK, parameters).rowcount > 0

    def drop_lock(self, name: str, owner: str) -> None:
        """Give a named lease back."""
        self._run(DROP_LOCK, (self._scoped(name), owner))

    def _scoped(self, name: str) -> str:
        return f"{self.namespace}:{name}"

    def write_worker(self, worker_id: str, info: str, until: int) -> None:
        """A worker's row."""
        self._run(WRITE_WORKER, (worker_id, self.namespace, info, until))

    def forget_worker(self, worker_id: str) -> None:
        """Remove a worker's row."""
        self._run(FORGET_WORKER, (worker_id, self.namespace))

    def free_keys(self, rows: Sequence[tuple[int, str, str]]) -> None:
        """Free idempotency keys: (queue_id, key, task id)."""
        if rows:
            self._run_many(FREE_KEYS, rows)

    def _forget(self, rows: Sequence[tuple[str, int, str | None, int, int, int, int]]) -> None:
        """What goes with deleted records: their keys, but for those with a life of their own, and their count."""
        gone = [row for row in rows if row[3] != KEY_WITH_TTL]
        self.free_keys([(row[1], row[2], row[0]) for row in gone if row[2] is not None])
        dead = Counter((row[4], COUNT_DEAD, row[5]) for row in rows if row[6] == FAILED)
        self.add_counts([(*at, -count) for at, count in dead.items()])

    def add_counts(self, rows: Sequence[tuple[int, int, int, int]]) -> None:
        """How many tasks more: (handler_id, kind, priority, how many)."""
        for row in rows:  # few: a statement each costs less than their way through JSON
            self._run(ADD_COUNT, row)

    def unfinished(self, task_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Seq and queue of these tasks, as far as they have not ended."""
        rows = self._run(UNFINISHED, (as_json_list(task_ids), self.namespace))
        return {task_id: (seq, queue) for task_id, seq, queue in rows}

    def request_cancel(self, seq: int) -> None:
        """Ask a running task to stop."""
        self._run(REQUEST_CANCEL, (seq,))

    def dead_letter(self, task_id: str) -> DeadLetter | None:
        """A task that failed for good."""
        row = self._run(DEAD_LETTER, (task_id, self.namespace)).fetchone()
        return None if row is None else DeadLetter(*row)

    def revive(self, task_id: str, seq: int, queue: QueueRow, place: Place, available_at: int) -> None:
        """Out of the history and into a line."""
        values = {"id": task_id, "seq": seq, "queue": queue.queue_id, "aging": queue.aging_us}
        where = {"lane": place.lane, "state": place.state, "handler": place.handler_id, "available_at": available_at}
        self._run(REVIVE, {**values, **where})
        self._run(DELETE_ENDED, (task_id,))

    def held_queues(self, task_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The partitions that these dead tasks stop."""
        rows = self._run(HELD, (self.namespace, as_json_list(task_ids)))
        return {task_id: (queue, code) for task_id, queue, code in rows}

    def purge(self, task_ids: Sequence[str]) -> int:
        """Delete ended tasks and their keys."""
        rows = self._run(PURGED, (as_json_list(task_ids), self.namespace)).fetchall()
        self._forget(rows)
        self._run_many(DELETE_ENDED, [(row[0],) for row in rows])
        return len(rows)

    def pause(self, queue: str, paused: bool) -> None:
        """Stop or resume claims."""
        self._run(PAUSE, (self.namespace, queue, int(paused)))

    def delete_queue(self, queue: str) -> bool:
        """The queue and all that is kept for it."""
        row = self._run(QUEUE_ID, (self.namespace, queue)).fetchone()
        if row is None:
            return True
        if self._run(HAS_TASKS, row).fetchone():
            return False
        for statement in DELETE_QUEUE:
            self._run(statement, row)
        return True

    def flush(self) -> None:
        """Delete everything of the namespace."""
        for statement in FLUSH:
            self._run(statement, (self.namespace,))


def decode_config(text: str) -> QueueConfig:
    """Stored settings. Fields that this version does not know are dropped; damaged settings count as none."""
    try:
        stored = _decode_settings(text)
        values = {name: value for name, value in stored.items() if name in _SETTINGS}
        if values.get("rate") is not None:
            values["rate"] = Rate(**values["rate"])
        return QueueConfig(**values)
    except (msgspec.DecodeError, InvalidArgument, TypeError):
        return QueueConfig()


_SETTINGS = {field.name for field in fields(QueueConfig)}
_decode_settings = msgspec.json.Decoder(dict[str, Any]).decode
