"""The server's tables. Tasks and lines are the store's (``transport/sql/tables.py``); nothing of them is here.

An application (who pays) owns namespaces; a namespace has environments; an environment is a namespace of the store,
named by its id, and has queues, named by theirs: so a queue that is deleted and made again under the same name is
another queue, with neither the old one's records nor its keys.

Ids are 32 hex digits (UUIDv7), times microseconds since the epoch. No foreign keys. Text of users' names is compared
as bytes.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text, UniqueConstraint
from sqlalchemy.types import TypeEngine

metadata = MetaData()

_Big = BigInteger().with_variant(Integer, "sqlite")


def _bytes(length: int) -> TypeEngine[str]:
    """Text compared as bytes on every engine."""
    text: TypeEngine[str] = String(length)
    return text.with_variant(String(length, collation="C"), "postgresql").with_variant(
        String(length, collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def _text() -> TypeEngine[str]:
    """Any text, also where the database's own character set is a smaller one."""
    text: TypeEngine[str] = Text()
    return text.with_variant(Text(collation="utf8mb4_bin"), "mysql", "mariadb")


def _id(name: str, comment: str, *, key: bool = False) -> Column[str]:
    return Column(name, _bytes(32), primary_key=key, nullable=False, comment=comment)


def _name(comment: str = "as users write it") -> Column[str]:
    return Column("name", _bytes(128), nullable=False, comment=comment)


def _time(name: str, comment: str, *, null: bool = False) -> Column[int]:
    return Column(name, _Big, nullable=null, comment=comment)


migrations = Table(
    "taskmq_migrations",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False, comment="number of the migration"),
    Column("name", String(128), nullable=False, comment="what it brings"),
    _time("applied_at", "when"),
    comment="migrations that were applied to this database",
    sqlite_strict=True,
)

applications = Table(
    "taskmq_applications",
    metadata,
    _id("application_id", "id", key=True),
    _name(),
    _time("created_at", "when"),
    UniqueConstraint("name", name="uq_taskmq_applications_name"),
    comment="who pays: the unit of fairness and quota",
    sqlite_strict=True,
)

namespaces = Table(
    "taskmq_namespaces",
    metadata,
    _id("namespace_id", "id", key=True),
    _id("application_id", "who owns it"),
    _name(),
    _time("created_at", "when"),
    UniqueConstraint("name", name="uq_taskmq_namespaces_name"),
    comment="namespaces of applications",
    sqlite_strict=True,
)

environments = Table(
    "taskmq_environments",
    metadata,
    _id("environment_id", "id, and the namespace of the store", key=True),
    _id("namespace_id", "where it belongs"),
    _name(),
    _time("created_at", "when"),
    UniqueConstraint("namespace_id", "name", name="uq_taskmq_environments_name"),
    comment="environments of namespaces: each has queues and tasks of its own",
    sqlite_strict=True,
)

queues = Table(
    "taskmq_server_queues",
    metadata,
    _id("queue_id", "id, and the name of the store's queue", key=True),
    _id("environment_id", "where it belongs"),
    _name(),
    Column("alias", _bytes(128), comment="name while it lives; NULL once it is deleted"),
    Column("settings", _text(), nullable=False, comment="as the API shows them, JSON"),
    Column("revision", Integer, nullable=False, comment="grows with every change"),
    Column("applied", Integer, nullable=False, comment="revision that the store's queue has"),
    _time("created_at", "when"),
    _time("deleted_at", "when, if it is deleted", null=True),
    UniqueConstraint("environment_id", "alias", name="uq_taskmq_server_queues_alias"),
    comment="queues of environments, as the API names them",
    sqlite_strict=True,
)

tokens = Table(
    "taskmq_tokens",
    metadata,
    Column("token_id", _bytes(16), primary_key=True, nullable=False, comment="public part of the token"),
    _id("environment_id", "all that it opens"),
    _name("what it is for"),
    Column("secret_sha256", _bytes(64), nullable=False, comment="of the secret part"),
    Column("scopes", _text(), nullable=False, comment="scopes and their queues, JSON"),
    _time("created_at", "when"),
    _time("expires_at", "when it ends; NULL: never", null=True),
    _time("revoked_at", "when it was revoked", null=True),
    comment="credentials; the secret itself is nowhere",
    sqlite_strict=True,
)

secrets = Table(
    "taskmq_secrets",
    metadata,
    Column("name", _bytes(64), primary_key=True, nullable=False, comment="what it is for"),
    Column("value", _bytes(128), nullable=False, comment="hex"),
    comment="what the servers of one database share",
    sqlite_strict=True,
)

audit = Table(
    "taskmq_audit",
    metadata,
    _id("audit_id", "id, in order of time", key=True),
    _time("at", "when"),
    Column("environment_id", _bytes(32), comment="where"),
    Column("actor", _bytes(64), nullable=False, comment="token id, or the command line"),
    Column("action", _bytes(64), nullable=False, comment="what was done"),
    Column("subject", _bytes(128), nullable=False, comment="to what"),
    Column("detail", _text(), comment="JSON"),
    comment="changes by operators",
    sqlite_strict=True,
)

sessions = Table(
    "taskmq_sessions",
    metadata,
    _id("session_id", "id, and the worker of the tasks it holds", key=True),
    _id("environment_id", "where it works"),
    Column("worker_id", _bytes(128), nullable=False, comment="as the worker calls itself"),
    Column("node", _bytes(128), nullable=False, comment="server that it is connected to"),
    Column("info", _text(), nullable=False, comment="capabilities, capacity, sdk, JSON"),
    _time("connected_at", "first connection"),
    _time("last_seen_at", "last message, to a few seconds"),
    _time("ended_at", "when it drained or left", null=True),
    comment="sessions of workers: who holds the leases",
    sqlite_strict=True,
)
Index("ix_taskmq_sessions_environment", sessions.c.environment_id, sessions.c.last_seen_at)
Index("ix_taskmq_sessions_seen", sessions.c.last_seen_at)

cancels = Table(
    "taskmq_cancels",
    metadata,
    _id("task_id", "task that runs", key=True),
    _time("requested_at", "when"),
    Column("reason", _text(), comment="of who asked"),
    comment="when and why running tasks were asked to stop",
    sqlite_strict=True,
)
