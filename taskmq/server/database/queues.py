"""Queues by id and name, with their settings and revisions."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, Row, insert, select, update

from taskmq.clock import SystemClock
from taskmq.ids import new_id
from taskmq.server.database.tables import queues
from taskmq.server.queue_settings import QueueSettings


class QueueRecord(msgspec.Struct, frozen=True):
    """A queue as its row has it. ``applied``: the revision that the store's queue has."""

    queue_id: str
    environment_id: str
    name: str
    settings: QueueSettings
    revision: int
    applied: int
    created_at: int
    deleted_at: int | None = None


_decode = msgspec.json.Decoder(QueueSettings).decode


def _record(row: Row[tuple[object, ...]]) -> QueueRecord:
    values = row._mapping
    return QueueRecord(
        queue_id=values["queue_id"],
        environment_id=values["environment_id"],
        name=values["name"],
        settings=_decode(values["settings"]),
        revision=values["revision"],
        applied=values["applied"],
        created_at=values["created_at"],
        deleted_at=values["deleted_at"],
    )


def by_name(connection: Connection, environment_id: str, name: str) -> QueueRecord | None:
    """The living queue of this name."""
    query = select(queues).where(queues.c.environment_id == environment_id, queues.c.alias == name)
    row = connection.execute(query).one_or_none()
    return None if row is None else _record(row)


def by_id(connection: Connection, environment_id: str, queue_id: str) -> QueueRecord | None:
    """The queue of this id, also a deleted one."""
    query = select(queues).where(queues.c.environment_id == environment_id, queues.c.queue_id == queue_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else _record(row)


def of_environment(connection: Connection, environment_id: str) -> list[QueueRecord]:
    """Every living queue, newest first."""
    query = select(queues).where(queues.c.environment_id == environment_id, queues.c.alias.is_not(None))
    return [_record(row) for row in connection.execute(query.order_by(queues.c.queue_id.desc()))]


def create(connection: Connection, environment_id: str, name: str, settings: QueueSettings) -> QueueRecord:
    """A new queue; its name must be free."""
    record = QueueRecord(new_id(), environment_id, name, settings.normal(), 1, 0, SystemClock().now())
    connection.execute(
        insert(queues).values(
            queue_id=record.queue_id,
            environment_id=environment_id,
            name=name,
            alias=name,
            settings=msgspec.json.encode(record.settings).decode(),
            revision=1,
            applied=0,
            created_at=record.created_at,
        )
    )
    return record


def change(connection: Connection, record: QueueRecord, settings: QueueSettings) -> QueueRecord:
    """New settings, and the next revision."""
    changed = msgspec.structs.replace(record, settings=settings.normal(), revision=record.revision + 1)
    text = msgspec.json.encode(changed.settings).decode()
    where = queues.c.queue_id == record.queue_id
    connection.execute(update(queues).where(where).values(settings=text, revision=changed.revision))
    return changed


def mark_applied(connection: Connection, record: QueueRecord) -> None:
    """The store's queue has this revision."""
    where = (queues.c.queue_id == record.queue_id, queues.c.applied < record.revision)
    connection.execute(update(queues).where(*where).values(applied=record.revision))


def unapplied(connection: Connection) -> list[QueueRecord]:
    """Queues whose last change has not reached the store: a server ended between the two."""
    query = select(queues).where(queues.c.applied < queues.c.revision, queues.c.alias.is_not(None))
    return [_record(row) for row in connection.execute(query)]


def delete(connection: Connection, queue_id: str) -> None:
    """Free its name; its records stay until their retention is over."""
    values = {"alias": None, "deleted_at": SystemClock().now()}
    connection.execute(update(queues).where(queues.c.queue_id == queue_id).values(**values))


def restore(connection: Connection, record: QueueRecord) -> None:
    """Take a deletion back; the name must still be free."""
    values = {"alias": record.name, "deleted_at": None}
    connection.execute(update(queues).where(queues.c.queue_id == record.queue_id).values(**values))
