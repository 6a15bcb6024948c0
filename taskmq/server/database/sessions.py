"""Sessions of workers, and requests to cancel what runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from taskmq.server.database.tables import cancels, sessions


class SessionRecord(msgspec.Struct, frozen=True):
    """A session as its row has it."""

    session_id: str
    environment_id: str
    worker_id: str
    node: str
    info: dict[str, Any]
    connected_at: int
    last_seen_at: int
    ended_at: int | None = None


def find(connection: Connection, session_ids: Sequence[str]) -> list[SessionRecord]:
    """The sessions of these ids."""
    rows = connection.execute(select(sessions).where(sessions.c.session_id.in_(session_ids))).mappings()
    return [SessionRecord(**{**row, "info": msgspec.json.decode(row["info"])}) for row in rows]


def put(connection: Connection, record: SessionRecord, *, new: bool) -> None:
    """Write a session, new or resumed.

    Not an update that becomes an insert where nothing is found: on MariaDB two of these, side by side, would each lock
    the gap that the other one needs.
    """
    values = msgspec.structs.asdict(record) | {"info": msgspec.json.encode(record.info).decode()}
    if new:
        connection.execute(insert(sessions).values(**values))
    else:
        connection.execute(update(sessions).where(sessions.c.session_id == record.session_id).values(**values))


def seen(connection: Connection, session_ids: Sequence[str], now: int) -> None:
    """Note that these sessions are alive."""
    connection.execute(update(sessions).where(sessions.c.session_id.in_(session_ids)).values(last_seen_at=now))


def end(connection: Connection, session_id: str, now: int) -> None:
    """A session that holds nothing any more."""
    connection.execute(update(sessions).where(sessions.c.session_id == session_id).values(ended_at=now))


def forget_old(connection: Connection, before: int) -> None:
    """Delete sessions not heard of since then, and requests to cancel as old as that."""
    connection.execute(delete(sessions).where(sessions.c.last_seen_at < before))
    connection.execute(delete(cancels).where(cancels.c.requested_at < before))


def request_cancel(connection: Connection, task_id: str, now: int, reason: str | None) -> None:
    """Remember when and why; the first request stays."""
    if connection.execute(select(cancels.c.task_id).where(cancels.c.task_id == task_id)).first() is None:
        connection.execute(insert(cancels).values(task_id=task_id, requested_at=now, reason=reason))


def forget_cancel(connection: Connection, task_id: str) -> None:
    """It runs anew, and nobody has asked it to stop."""
    connection.execute(delete(cancels).where(cancels.c.task_id == task_id))


def cancel_requests(connection: Connection, task_ids: Sequence[str]) -> dict[str, tuple[int, str | None]]:
    """When and why these tasks were asked to stop."""
    query = select(cancels.c.task_id, cancels.c.requested_at, cancels.c.reason).where(cancels.c.task_id.in_(task_ids))
    return {row.task_id: (row.requested_at, row.reason) for row in connection.execute(query)}


def active(connection: Connection, environment_id: str, since: int) -> list[SessionRecord]:
    """Sessions of an environment that were heard of since then and have not ended."""
    where = (sessions.c.environment_id == environment_id, sessions.c.last_seen_at >= since)
    rows = connection.execute(select(sessions).where(*where, sessions.c.ended_at.is_(None))).mappings()
    return [SessionRecord(**{**row, "info": msgspec.json.decode(row["info"])}) for row in rows]
