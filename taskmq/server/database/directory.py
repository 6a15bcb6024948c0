"""Who there is: applications, namespaces, environments, tokens. Everything that maps a token to what it opens."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Table, bindparam, insert, or_, select, update

from taskmq.clock import SystemClock
from taskmq.errors import TransportError
from taskmq.ids import new_id
from taskmq.server.database import queues as queue_rows
from taskmq.server.database.engine import Conflict, Database
from taskmq.server.database.tables import applications, audit, environments, namespaces, tokens
from taskmq.server.database.tables import secrets as secrets_table
from taskmq.server.permissions import Grant, Identity
from taskmq.server.queue_settings import QueueSettings

_decode_grants = msgspec.json.Decoder(list[Grant]).decode


class Taken(Conflict):
    """A name belongs to somebody else."""


class NewToken(NamedTuple):
    """A token that was just made; the only time that it is whole."""

    token_id: str
    token: str
    created_at: int
    expires_at: int | None


class Place(NamedTuple):
    """An environment with all that it belongs to."""

    application_id: str
    namespace_id: str
    environment_id: str


def identify(database: Database, token_id: str, secret: str) -> Identity | None:
    """Who this token stands for; None if there is no such token, or it is revoked. Its expiry is the caller's."""
    with database.read() as connection:
        row = connection.execute(_IDENTITY, {"token_id": token_id}).one_or_none()
    stored = row.secret_sha256 if row is not None else "0" * 64
    right = hmac.compare_digest(stored, hash_secret(secret))  # compared also where there is none: one timing
    if row is None or not right or row.revoked_at is not None:
        return None
    return Identity(
        token_id=row.token_id,
        application=row.application,
        application_id=row.application_id,
        namespace=row.namespace,
        environment=row.environment,
        environment_id=row.environment_id,
        grants=tuple(_decode_grants(row.scopes)),
        expires_at=row.expires_at,
    )


_IDENTITY = (
    select(
        tokens.c.token_id,
        tokens.c.secret_sha256,
        tokens.c.scopes,
        tokens.c.expires_at,
        tokens.c.revoked_at,
        environments.c.environment_id,
        environments.c.name.label("environment"),
        namespaces.c.name.label("namespace"),
        applications.c.application_id,
        applications.c.name.label("application"),
    )
    .select_from(
        tokens.join(environments, environments.c.environment_id == tokens.c.environment_id)
        .join(namespaces, namespaces.c.namespace_id == environments.c.namespace_id)
        .join(applications, applications.c.application_id == namespaces.c.application_id)
    )
    .where(tokens.c.token_id == bindparam("token_id"))
)


def hash_secret(secret: str) -> str:
    """How a secret is stored. It is random and long, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_place(connection: Connection, application: str, namespace: str, environment: str) -> Place:
    """What is there of the three, and what is missing made; raises Taken for somebody else's namespace."""
    application_id = _find(connection, applications, name=application) or _make(
        connection, applications, name=application
    )
    found = connection.execute(select(namespaces).where(namespaces.c.name == namespace)).one_or_none()
    if found is not None and found.application_id != application_id:
        raise Taken(f"the namespace {namespace} belongs to another application")
    namespace_id = (
        found.namespace_id
        if found is not None
        else _make(connection, namespaces, name=namespace, application_id=application_id)
    )
    of = {"name": environment, "namespace_id": namespace_id}
    environment_id = _find(connection, environments, **of) or _make(connection, environments, **of)
    return Place(application_id, namespace_id, environment_id)


def find_application(connection: Connection, name: str) -> str | None:
    """An application's id."""
    return _find(connection, applications, name=name)


def make_application(connection: Connection, name: str) -> str:
    """A new application; its id."""
    return _make(connection, applications, name=name)


def find_namespace(connection: Connection, name: str) -> str | None:
    """A namespace's id, whoever owns it."""
    return _find(connection, namespaces, name=name)


def make_namespace(connection: Connection, name: str, application_id: str) -> str:
    """A new namespace; its id."""
    return _make(connection, namespaces, name=name, application_id=application_id)


def find_place(connection: Connection, application: str, namespace: str, environment: str) -> Place | None:
    """The environment of these names, if it is there."""
    query = (
        select(applications.c.application_id, namespaces.c.namespace_id, environments.c.environment_id)
        .select_from(
            environments.join(namespaces, namespaces.c.namespace_id == environments.c.namespace_id).join(
                applications, applications.c.application_id == namespaces.c.application_id
            )
        )
        .where(applications.c.name == application, namespaces.c.name == namespace, environments.c.name == environment)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else Place(*row)


def make_queue(connection: Connection, environment_id: str, name: str) -> queue_rows.QueueRecord:
    """The queue of this name, made with default settings if it is missing."""
    return queue_rows.by_name(connection, environment_id, name) or queue_rows.create(
        connection, environment_id, name, QueueSettings()
    )


def make_token(
    connection: Connection, environment_id: str, name: str, grants: Sequence[Grant], expires_at: int | None
) -> NewToken:
    """A new token."""
    token_id = secrets.token_hex(8)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    created_at = SystemClock().now()
    connection.execute(
        insert(tokens).values(
            token_id=token_id,
            environment_id=environment_id,
            name=name,
            secret_sha256=hash_secret(secret),
            scopes=msgspec.json.encode(list(grants)).decode(),
            created_at=created_at,
            expires_at=expires_at,
        )
    )
    return NewToken(token_id, f"tmq_{token_id}_{secret}", created_at, expires_at)


class Token(NamedTuple):
    """A token as its row has it, without its secret."""

    token_id: str
    environment_id: str
    name: str
    grants: list[Grant]
    expires_at: int | None
    revoked_at: int | None

    def ended(self, now: int) -> bool:
        """Whether it opens nothing any more."""
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now)


def find_token(connection: Connection, token_id: str) -> Token | None:
    """The token of this id."""
    row = connection.execute(select(tokens).where(tokens.c.token_id == token_id)).one_or_none()
    if row is None:
        return None
    grants = _decode_grants(row.scopes)
    return Token(token_id, row.environment_id, row.name, grants, row.expires_at, row.revoked_at)


def end_token(connection: Connection, token_id: str, at: int) -> None:
    """A token ends at this time, unless it ends sooner."""
    sooner = or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > at)
    connection.execute(update(tokens).where(tokens.c.token_id == token_id, sooner).values(expires_at=at))


def names_of(connection: Connection, environment_id: str) -> dict[str, str]:
    """How an environment and what it belongs to are called."""
    row = connection.execute(_NAMES, {"environment_id": environment_id}).mappings().one()
    return dict(row)


_NAMES = (
    select(
        applications.c.name.label("application"),
        namespaces.c.name.label("namespace"),
        environments.c.name.label("environment"),
    )
    .select_from(
        environments.join(namespaces, namespaces.c.namespace_id == environments.c.namespace_id).join(
            applications, applications.c.application_id == namespaces.c.application_id
        )
    )
    .where(environments.c.environment_id == bindparam("environment_id"))
)


def revoke_token(connection: Connection, token_id: str) -> bool:
    """End a token; False if there is none. Repeatable."""
    row = connection.execute(select(tokens.c.revoked_at).where(tokens.c.token_id == token_id)).one_or_none()
    if row is not None and row.revoked_at is None:
        now = SystemClock().now()
        connection.execute(update(tokens).where(tokens.c.token_id == token_id).values(revoked_at=now))
    return row is not None


def list_tokens(connection: Connection, environment_id: str | None = None) -> list[dict[str, Any]]:
    """Tokens without their secrets, newest last."""
    query = select(tokens).order_by(tokens.c.created_at)
    if environment_id is not None:
        query = query.where(tokens.c.environment_id == environment_id)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    for row in rows:
        del row["secret_sha256"]
        row["scopes"] = msgspec.json.decode(row["scopes"])
    return rows


def note(connection: Connection, environment_id: str | None, actor: str, action: str, subject: str) -> None:
    """A line in the audit."""
    values = {"audit_id": new_id(), "at": SystemClock().now(), "environment_id": environment_id}
    connection.execute(insert(audit).values(**values, actor=actor, action=action, subject=subject))


def _key(table: Table) -> str:
    return next(iter(table.primary_key.columns)).name


def _find(connection: Connection, table: Table, **where: str) -> str | None:
    query = select(table.c[_key(table)]).where(*(table.c[name] == value for name, value in where.items()))
    found: str | None = connection.execute(query).scalar_one_or_none()
    return found


def _make(connection: Connection, table: Table, **values: str) -> str:
    made = new_id()
    row = {_key(table): made, "created_at": SystemClock().now(), **values}
    connection.execute(insert(table).values(row))
    return made


def shared_secret(database: Database, name: str) -> bytes:
    """A secret that all servers of this database share, made by the first one."""
    for _ in range(2):
        with database.read() as connection:
            found = connection.execute(select(secrets_table.c.value).where(secrets_table.c.name == name)).scalar()
        if found is not None:
            return bytes.fromhex(found)
        with contextlib.suppress(Conflict), database.write() as connection:
            connection.execute(insert(secrets_table).values(name=name, value=secrets.token_hex(32)))
    raise TransportError("the servers' shared secret can neither be read nor written")
