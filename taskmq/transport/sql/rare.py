"""The statements that are not on the hot path: settings, operators, housekeeping. One text for all engines.

An engine brings ``_ask`` and ``_tell`` to run them, its ``Words``, and its own text where a dialect has no common one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from taskmq.queue import QueueConfig
from taskmq.transport.sql.codes import FAILED, SUCCEEDED
from taskmq.transport.sql.configs import config_columns, decode_config
from taskmq.transport.sql.parked import ParkedLines
from taskmq.transport.sql.rows import DeadLetter, Place, QueueRow, Record
from taskmq.transport.sql.words import Words

FREE_KEYS = "DELETE FROM taskmq_keys WHERE queue_id=:queue AND idem_key=:key AND task_id=:task"
QUEUE_CONFIGS = "SELECT name, config FROM taskmq_queues WHERE namespace=:namespace AND name IN @names"
CONFIGURE = """
UPDATE taskmq_queues SET aging_us=:aging_us, weight=:weight, max_running=:max_running, max_queued=:max_queued,
  hold=:hold, lease_us=:lease_us, paused=:paused, config=:config,
  level=CASE WHEN rate {same} :rate THEN level END, open_at=CASE WHEN rate {same} :rate THEN open_at END, rate=:rate
WHERE queue_id=:queue
"""
CLOSE = "UPDATE taskmq_queues SET max_queued=0 WHERE queue_id=:queue"
_RECORD = "h.id, h.queue_id, h.idem_key, h.key_mode, h.handler_id, h.priority, h.state"
OLD_RECORDS = f"""
SELECT {_RECORD} FROM taskmq_history h WHERE delete_at<=:now ORDER BY delete_at LIMIT :limit
"""
RECORDS = f"""
SELECT {_RECORD} FROM taskmq_history h
WHERE h.id IN @ids AND queue_id IN (SELECT queue_id FROM taskmq_queues WHERE namespace=:namespace) ORDER BY h.id
"""
DELETE_RECORDS = "DELETE FROM taskmq_history WHERE id IN @ids"
DELETE_KEYS = """
DELETE FROM taskmq_keys WHERE (queue_id, idem_key) IN (SELECT queue_id, idem_key FROM taskmq_keys
  WHERE expires_at IS NOT NULL AND expires_at<=:now ORDER BY expires_at LIMIT :limit)
"""
TAKE_LOCK = """
INSERT INTO taskmq_locks(name, owner, expires_at) VALUES (:name, :owner, :until)
ON CONFLICT(name) DO UPDATE SET owner=excluded.owner, expires_at=excluded.expires_at
WHERE taskmq_locks.owner=excluded.owner OR taskmq_locks.expires_at<=:now
"""
DROP_LOCK = "DELETE FROM taskmq_locks WHERE name=:name AND owner=:owner"
WRITE_WORKER = """
INSERT INTO taskmq_workers(id, namespace, info, expires_at) VALUES (:id, :namespace, :info, :until)
ON CONFLICT(namespace, id) DO UPDATE SET info=excluded.info, expires_at=excluded.expires_at
"""
FORGET_WORKER = "DELETE FROM taskmq_workers WHERE id=:id AND namespace=:namespace"
DELETE_WORKERS = "DELETE FROM taskmq_workers WHERE expires_at<=:now"
UNFINISHED = """
SELECT t.id, t.seq, q.name FROM taskmq_tasks t JOIN taskmq_queues q USING (queue_id)
WHERE t.id IN @ids AND namespace=:namespace
"""
REQUEST_CANCEL = "UPDATE taskmq_tasks SET cancel_requested=1 WHERE seq=:seq"
DEAD_QUEUES = f"""
SELECT DISTINCT q.name FROM taskmq_history h JOIN taskmq_queues q USING (queue_id)
WHERE h.id IN @ids AND h.state={FAILED} AND namespace=:namespace
"""
DEAD_LETTER = f"""
SELECT seq, available_at, q.name, h.queue_id, code, pweight, pmax, priority, handler_id, handler, version,
  limit_key, limit_n, idem_key, key_mode, digest, state, replays
FROM taskmq_history h JOIN taskmq_queues q USING (queue_id) WHERE h.id=:id AND h.state<>{SUCCEEDED}
  AND namespace=:namespace
"""
REVIVE = """
INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, priority, aging_us, available_at, code, pweight, pmax, epoch,
  max_attempts, replays, created_at, retention, handler, handler_id, version, limit_key, limit_n, idem_key, key_mode,
  digest, tags, attempt_log, body)
SELECT :seq, id, :queue, :state, :lane, priority, :aging, :available_at, code, pweight, pmax, epoch, max_attempts,
  replays+1, created_at, retention, handler, :handler, version, limit_key, limit_n, idem_key, key_mode, digest,
  tags, attempt_log, body FROM taskmq_history WHERE id=:id
"""
HELD = """
SELECT held_by, q.name, code FROM taskmq_flows f JOIN taskmq_queues q USING (queue_id)
WHERE namespace=:namespace AND held_by IN @ids AND EXISTS (SELECT 1 FROM taskmq_history h WHERE h.id=held_by)
"""
PAUSE = """
INSERT INTO taskmq_queues(namespace, name, paused) VALUES (:namespace, :name, :paused)
ON CONFLICT(namespace, name) DO UPDATE SET paused=excluded.paused
"""
_OF_NAMESPACE = "queue_id IN (SELECT queue_id FROM taskmq_queues WHERE namespace=:namespace)"
_OF_HANDLERS = f"handler_id IN (SELECT handler_id FROM taskmq_handlers WHERE {_OF_NAMESPACE})"
FLUSH = (
    *(
        f"DELETE FROM taskmq_{table} WHERE {_OF_NAMESPACE}"
        for table in ("tasks", "flows", "history", "keys", "handlers")
    ),
    *(f"DELETE FROM taskmq_{table} WHERE namespace=:namespace" for table in ("workers", "limits", "parked")),
    "DELETE FROM taskmq_locks WHERE substr(name, 1, length(:namespace)+1)=:scope",
    "DELETE FROM taskmq_queues WHERE namespace=:namespace",
)
QUEUE_ID = "SELECT queue_id FROM taskmq_queues WHERE namespace=:namespace AND name=:name"
QUEUE_NAMES = "SELECT name FROM taskmq_queues WHERE namespace=:namespace ORDER BY name"
HAS_TASKS = "SELECT 1 FROM taskmq_tasks WHERE queue_id=:queue LIMIT 1"
_COUNTS_OF = "WHERE handler_id IN (SELECT handler_id FROM taskmq_handlers WHERE queue_id=:queue)"
DELETE_QUEUE = tuple(
    f"DELETE FROM taskmq_{table} WHERE queue_id=:queue" for table in ("flows", "history", "keys", "handlers", "queues")
)


class Rare(ParkedLines):
    """The rare statements of a session."""

    words: ClassVar[Words]
    delete_keys: ClassVar[str] = DELETE_KEYS
    take_lock_text: ClassVar[str] = TAKE_LOCK
    write_worker_text: ClassVar[str] = WRITE_WORKER
    pause_text: ClassVar[str] = PAUSE
    also_of_queue: ClassVar[tuple[str, ...]] = ()
    also_of_namespace: ClassVar[tuple[str, ...]] = ()
    """What an engine keeps beside the common tables."""

    def _count(self, statement: str, /, **parameters: Any) -> int:
        """How many rows a statement has changed."""
        raise NotImplementedError

    # ── settings ──

    def queue_configs(self, names: Sequence[str]) -> dict[str, QueueConfig]:
        rows = self._ask(QUEUE_CONFIGS, namespace=self.namespace, names=names)
        return {name: decode_config(config) for name, config in rows if config is not None}

    def configure(self, queue_id: int, config: QueueConfig) -> None:
        self._tell(CONFIGURE.format(same=self.words.same), queue=queue_id, **config_columns(config))

    def close(self, queue_id: int) -> None:
        self._tell(CLOSE, queue=queue_id)

    def pause(self, queue: str, paused: bool) -> None:
        self._tell(self.pause_text, namespace=self.namespace, name=queue, paused=int(paused))

    # ── retention ──

    def take_old_records(self, now: int, limit: int) -> list[Record]:
        return self._take(self._ask(OLD_RECORDS + self.words.skip, now=now, limit=limit))

    def take_records(self, task_ids: Sequence[str]) -> list[Record]:
        return self._take(self._ask(RECORDS + self.words.lock, ids=task_ids, namespace=self.namespace))

    def _take(self, rows: Sequence[tuple[Any, ...]]) -> list[Record]:
        records = [Record(*row) for row in rows]
        if records:
            self._tell(DELETE_RECORDS, ids=[record.id for record in records])
        return records

    def delete_old_keys(self, now: int, limit: int) -> int:
        return self._count(self.delete_keys, now=now, limit=limit)

    def delete_old_workers(self, now: int) -> None:
        self._tell(DELETE_WORKERS, now=now)

    def free_keys(self, rows: Sequence[tuple[int, str, str]]) -> None:
        for queue, key, task in rows:
            self._tell(FREE_KEYS, queue=queue, key=key, task=task)

    # ── named leases, workers ──

    def take_lock(self, name: str, owner: str, now: int, ttl: int) -> bool:
        return self._count(self.take_lock_text, name=self._scope(name), owner=owner, until=now + ttl, now=now) > 0

    def drop_lock(self, name: str, owner: str) -> None:
        self._tell(DROP_LOCK, name=self._scope(name), owner=owner)

    def _scope(self, name: str) -> str:
        return f"{self.namespace}:{name}"

    def write_worker(self, worker_id: str, info: str, until: int) -> None:
        self._tell(self.write_worker_text, id=worker_id, namespace=self.namespace, info=info, until=until)

    def forget_worker(self, worker_id: str) -> None:
        self._tell(FORGET_WORKER, id=worker_id, namespace=self.namespace)

    # ── operators ──

    def unfinished(self, task_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        rows = self._ask(UNFINISHED, ids=task_ids, namespace=self.namespace) if task_ids else []
        return {task_id: (seq, queue) for task_id, seq, queue in rows}

    def request_cancel(self, seq: int) -> None:
        self._tell(REQUEST_CANCEL, seq=seq)

    def dead_queues(self, task_ids: Sequence[str]) -> set[str]:
        return {row[0] for row in self._ask(DEAD_QUEUES, ids=task_ids, namespace=self.namespace)}

    def dead_letter(self, task_id: str) -> DeadLetter | None:
        rows = self._ask(DEAD_LETTER + self.words.lock, id=task_id, namespace=self.namespace)
        return DeadLetter(*rows[0]) if rows else None

    def revive(self, task_id: str, seq: int, queue: QueueRow, place: Place, available_at: int) -> None:
        values = {"id": task_id, "seq": seq, "queue": queue.queue_id, "aging": queue.aging_us}
        where = {"lane": place.lane, "state": place.state, "handler": place.handler_id, "available_at": available_at}
        self._tell(REVIVE, **values, **where)
        self._tell(DELETE_RECORDS, ids=[task_id])

    def held_queues(self, task_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        rows = self._ask(HELD, namespace=self.namespace, ids=task_ids)
        return {task_id: (queue, code) for task_id, queue, code in rows}

    def guard_names(self, names: Sequence[str]) -> None:
        """Nobody publishes without the lock."""

    def delete_queue(self, queue: str) -> bool:
        self.guard_names([queue])
        rows = self._ask(QUEUE_ID + self.words.lock, namespace=self.namespace, name=queue)
        if not rows:
            return True
        queue_id = rows[0][0]
        if self._ask(HAS_TASKS, queue=queue_id):
            return False
        for table in self.words.counts:
            self._tell(f"DELETE FROM {table} {_COUNTS_OF}", queue=queue_id)
        for statement in (*DELETE_QUEUE, *self.also_of_queue):
            self._tell(statement, queue=queue_id)
        return True

    def flush(self) -> None:
        self.guard_names([row[0] for row in self._ask(QUEUE_NAMES, namespace=self.namespace)])
        self._ask(
            f"SELECT queue_id FROM taskmq_queues WHERE namespace=:namespace ORDER BY queue_id{self.words.lock}",
            namespace=self.namespace,
        )
        for table in self.words.counts:
            self._tell(f"DELETE FROM {table} WHERE {_OF_HANDLERS}", namespace=self.namespace)
        for statement in (*FLUSH, *self.also_of_namespace):
            self._tell(statement, namespace=self.namespace, scope=f"{self.namespace}:")
