"""Deleting ended tasks: with a record go its key, unless that has a life of its own, and its place in the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from taskmq.transport.sql.codes import COUNT_DEAD, FAILED, KEY_WITH_TTL
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.rows import CountRow, Record


def delete_old(session: Session, now: int, limit: int) -> tuple[int, bool]:
    """Delete what has been kept long enough, ``limit`` of each kind; how many records, and whether there is more."""
    records = session.take_old_records(now, limit)
    forget(session, records)
    keys = session.delete_old_keys(now, limit)
    session.delete_old_workers(now)
    session.fold_deltas(limit)
    return len(records), max(len(records), keys) >= limit


def forget(session: Session, records: Sequence[Record]) -> None:
    """What goes with deleted records. Their queues are not locked."""
    session.free_keys(
        sorted(
            (record.queue_id, record.idem_key, record.id)
            for record in records
            if record.idem_key is not None and record.key_mode != KEY_WITH_TTL
        )
    )
    dead = Counter((record.handler_id, record.priority) for record in records if record.state == FAILED)
    session.add_deltas([CountRow(handler, COUNT_DEAD, priority, -n) for (handler, priority), n in sorted(dead.items())])
