"""What can be wrong with a PostgreSQL database, for ``taskmq doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from taskmq.transport.base import Finding
from taskmq.transport.sql.codes import DUE
from taskmq.transport.sql.postgresql.connection import is_pooled
from taskmq.transport.sql.postgresql.settings import Settings

Connection = psycopg.Connection[tuple[Any, ...]]

OLD_TRANSACTION = 300
"""Seconds after which an open transaction is worth a word: no row that was deleted since can be cleaned away."""
LATE = 10

OLDEST = f"""
SELECT pid, coalesce(usename, ''), coalesce(application_name, ''), state, extract(epoch FROM now()-xact_start)::bigint
FROM pg_stat_activity WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL AND pid<>pg_backend_pid()
  AND datname=current_database() AND xact_start<now()-make_interval(secs => {OLD_TRANSACTION})
ORDER BY xact_start LIMIT 1
"""
HOARDING = """
SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE relid IN (
  to_regclass('taskmq_tasks'), to_regclass('taskmq_flows'), to_regclass('taskmq_queues'))
  AND n_dead_tup>100000 AND n_dead_tup>n_live_tup ORDER BY n_dead_tup DESC LIMIT 1
"""
NO_VACUUM = """
SELECT relname FROM pg_class WHERE oid IN (to_regclass('taskmq_tasks'), to_regclass('taskmq_flows'),
  to_regclass('taskmq_queues'), to_regclass('taskmq_counts')) AND 'autovacuum_enabled=false' = ANY(reloptions)
"""
LATE_TASKS = f"""
SELECT count(*), coalesce(max(late), 0)::float8 FROM (
  SELECT extract(epoch FROM clock_timestamp()) - due_at/1e6 AS late
  FROM taskmq_tasks t JOIN taskmq_queues q USING (queue_id)
  WHERE q.namespace=%s AND state={DUE} AND due_at<(extract(epoch FROM clock_timestamp())-{LATE})*1000000 LIMIT 1000) l
WHERE EXISTS (SELECT 1 FROM taskmq_workers
  WHERE namespace=%s AND expires_at>extract(epoch FROM clock_timestamp())*1000000)
"""


RIGHTS = """
SELECT kind, string_agg(DISTINCT lacks, ', '), max(schema), current_user::text FROM (
  SELECT n.nspname AS schema, c.oid, lacks, CASE c.relkind WHEN 'S' THEN 'SEQUENCES' ELSE 'TABLES' END AS kind
  FROM pg_class version JOIN pg_namespace n ON n.oid=version.relnamespace
  JOIN pg_class c ON c.relnamespace=n.oid AND starts_with(c.relname, 'taskmq_') AND c.relname<>'taskmq_schema'
  JOIN (VALUES ('r', 'SELECT'), ('r', 'INSERT'), ('r', 'UPDATE'), ('r', 'DELETE'), ('S', 'USAGE')) r(relkind, lacks)
    ON r.relkind=c.relkind::text
  WHERE version.oid=to_regclass('taskmq_schema')) needed
WHERE CASE kind WHEN 'TABLES' THEN NOT has_table_privilege(oid, lacks) ELSE NOT has_sequence_privilege(oid, lacks) END
GROUP BY kind ORDER BY kind DESC
"""


def checkup(connection: Connection, settings: Settings, namespace: str) -> list[Finding]:
    """Everything found wrong with the database."""
    return [
        *replica(connection),
        *rights(connection),
        *durability(connection),
        *pooler(connection, settings),
        *old_transactions(connection),
        *vacuum(connection),
        *promotion(connection, namespace),
    ]


def _setting(connection: Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    return str(row[0]) if row else ""


def replica(connection: Connection) -> Iterator[Finding]:
    """A server that takes no writes."""
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row and row[0]:
        yield Finding(
            check="replica",
            level="error",
            text="the server is a read-only replica",
            fix="let the URL point to the primary, e.g. ?target_session_attrs=read-write with several hosts",
        )


def rights(connection: Connection) -> Iterator[Finding]:
    """What this user may not do; the server's own error names the table, and not the right."""
    for kind, missing, schema, user in connection.execute(RIGHTS).fetchall():
        yield Finding(
            check="rights",
            level="error",
            text=f"the user {user} lacks {missing} on {kind.lower()} of taskmq",
            fix=f"GRANT {missing} ON ALL {kind} IN SCHEMA {schema} TO {user}",
        )


def durability(connection: Connection) -> Iterator[Finding]:
    """Commits that do not wait for the disk."""
    for name in ("fsync", "full_page_writes"):
        if _setting(connection, name) == "off":
            yield Finding(
                check="durability",
                level="error",
                text=f"{name}=off: a power cut may leave a damaged database",
                fix=f"set {name}=on in postgresql.conf",
            )
    if _setting(connection, "synchronous_commit") == "off":
        yield Finding(
            check="durability",
            level="warning",
            text="synchronous_commit=off: a crash may lose the last moments of what was published and settled",
            fix="set synchronous_commit=on, for the user of the workers at least",
        )


def pooler(connection: Connection, settings: Settings) -> Iterator[Finding]:
    """A pooler between, which the URL does not know of."""
    if settings.prepared and is_pooled(connection):
        yield Finding(
            check="pooler",
            level="warning",
            text="a pooler is in between (pgbouncer?): in transaction mode it loses prepared statements and notices",
            fix="add ?prepared=off to the URL, or connect to the server itself",
        )


def old_transactions(connection: Connection) -> Iterator[Finding]:
    """A transaction that has been open for long."""
    row = connection.execute(OLDEST).fetchone()
    if row:
        pid, user, program, state, seconds = row
        who = f"pid {pid}" + (f", user {user}" if user else "") + (f", {program}" if program else "")
        yield Finding(
            check="snapshot",
            level="warning",
            text=f"a transaction has been open for {seconds // 60:,} minutes ({who}, {state}): nothing that was "
            "deleted since can be cleaned away, and claims get slower and slower",
            fix=f"end it: SELECT pg_terminate_backend({pid}); and set idle_in_transaction_session_timeout",
        )


def vacuum(connection: Connection) -> Iterator[Finding]:
    """Nobody cleans up."""
    off = [row[0] for row in connection.execute(NO_VACUUM).fetchall()]
    if _setting(connection, "autovacuum") == "off":
        off = ["all tables"]
    if off:
        yield Finding(
            check="autovacuum",
            level="error",
            text=f"autovacuum is off for {', '.join(off)}: claims get slower with every task that was ever done",
            fix="set autovacuum=on, and RESET (autovacuum_enabled) on the tables",
        )
    row = connection.execute(HOARDING).fetchone()
    if row:
        yield Finding(
            check="autovacuum",
            level="warning",
            text=f"{row[0]} has {row[1]:,} dead rows, more than live ones",
            fix="look for an open transaction or a replication slot that holds them; then VACUUM",
        )


def promotion(connection: Connection, namespace: str) -> Iterator[Finding]:
    """Tasks that fell due and did not come into their line, although there are workers."""
    row = connection.execute(LATE_TASKS, (namespace, namespace)).fetchone()
    if row and row[0]:
        yield Finding(
            check="housekeeping",
            level="warning",
            text=f"{row[0]:,} tasks fell due up to {row[1]:,.0f} s ago and are not in their line yet",
            fix="look at the workers' logs for errors of maintenance, and whether a queue has a worker at all",
        )
