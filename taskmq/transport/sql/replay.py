"""Dead letters queued again: a new place in line and a new budget, the same id."""

from __future__ import annotations

from collections.abc import Sequence

from taskmq.policy.claim import UNPARTITIONED
from taskmq.policy.order import sort_key
from taskmq.transport.sql.book import open_books
from taskmq.transport.sql.codes import BATCH, KEY_WITH_TTL
from taskmq.transport.sql.dialect import Session


def replay(session: Session, task_ids: Sequence[str], queue: str | None, now: int) -> list[bool]:
    """Queue these dead letters again, into ``queue`` or their own; False for what is not dead."""
    return [_replay(session, task_id, queue, now) for task_id in task_ids]


def _replay(session: Session, task_id: str, queue: str | None, now: int) -> bool:
    dead = session.dead_letter(task_id)
    if dead is None:
        return False
    book = open_books(session, [queue or dead.queue], BATCH, now, BATCH)[queue or dead.queue]
    row = book.row
    code = dead.code or UNPARTITIONED
    if dead.code is not None:
        book.load_codes([dead.code])
    seq = session.next_seq()
    flow = book.flow(code, seq)
    book.enter(flow, sort_key(row.aging_us, dead.priority, now, seq), dead.pweight)
    moved = row.queue_id != dead.queue_id
    if moved and dead.idem_key is not None and dead.key_mode != KEY_WITH_TTL:
        session.free_keys([(dead.queue_id, dead.idem_key, task_id)])
    session.revive(task_id, seq, row, flow.flow_id, now)
    book.flush()
    return True
