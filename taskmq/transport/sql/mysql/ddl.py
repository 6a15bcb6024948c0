"""The schema in the words of MySQL and MariaDB.

The only place of this package that needs SQLAlchemy, and only to create a database. Text is compared byte by byte and
without padding – ``A``, ``a`` and ``a `` are three keys – by a collation that the two name differently. There are no
partial indexes, so the indexes are not those of ``tables``: the state stands in each of them.
"""

from __future__ import annotations

from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from taskmq.transport.sql.tables import metadata

MARIADB, MYSQL = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"

INDEXES = {
    "taskmq_flows": (
        "INDEX ix_taskmq_flows_turn (queue_id, elig, h1, k2, k3, code)",
        "INDEX ix_taskmq_flows_of_handler (hhandler, elig, h1, k2, k3, code)",
        "INDEX ix_taskmq_flows_due (queue_id, blocked_until, blocked_seq)",
    ),
    "taskmq_tasks": (
        "UNIQUE INDEX ix_taskmq_tasks_id (id)",
        "INDEX ix_taskmq_tasks_line (lane, state, s1, s2, seq, handler_id)",
        "INDEX ix_taskmq_tasks_due (queue_id, state, due_at, seq)",
        "INDEX ix_taskmq_tasks_retry (queue_id, state, retry_at)",
        "INDEX ix_taskmq_tasks_run (run_lane)",
        "INDEX ix_taskmq_tasks_expiry (queue_id, expires_at)",
        "INDEX ix_taskmq_tasks_parked (handler_id, limit_key, limit_n, state, s1, s2, rtag, seq)",
        "INDEX ix_taskmq_tasks_parked_first (lane, state, handler_id, limit_key, limit_n, s1, s2, seq)",
        "INDEX ix_taskmq_tasks_parked_last (lane, state, handler_id, limit_key, limit_n, rtag)",
    ),
    "taskmq_parked": ("INDEX ix_taskmq_parked_owed (handler_id, owed)",),
    "taskmq_history": (
        "INDEX ix_taskmq_history_delete (delete_at)",
        "INDEX ix_taskmq_history_dead (queue_id, state, id)",
    ),
    "taskmq_keys": ("INDEX ix_taskmq_keys_expiry (expires_at)",),
}
_GUARDS = """CREATE TABLE taskmq_guards (
  namespace VARCHAR(64) NOT NULL, name VARCHAR(128) NOT NULL, PRIMARY KEY (namespace, name)
) COMMENT='what a publish shares and delete_queue takes; no name: the lock of all limits'"""
_SEQS = """CREATE TABLE taskmq_seqs (
  seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY
) COMMENT='always empty: its counter numbers the tasks'"""


def statements(collation: str) -> list[str]:
    """CREATE statements for a new database."""
    dialect = mysql.dialect()
    end = f" ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
    ddl = []
    for table in metadata.sorted_tables:
        text = str(CreateTable(table).compile(dialect=dialect)).strip().replace(" AUTO_INCREMENT", "")
        if table.name in ("taskmq_queues", "taskmq_handlers"):  # their numbers are given by the server
            text = str(CreateTable(table).compile(dialect=dialect)).strip()
        columns, close, comment = text.replace(" TEXT", " MEDIUMTEXT").rpartition("\n)")
        indexes = "".join(f", \n\t{index}" for index in INDEXES.get(table.name, ()))
        ddl.append(f"{columns.rstrip()}{indexes}{close}{comment}{end}")
    return [*ddl, _GUARDS + end, _SEQS + end]


def drop_statements() -> list[str]:
    """What removes all of it."""
    names = ", ".join([*(table.name for table in reversed(metadata.sorted_tables)), "taskmq_guards", "taskmq_seqs"])
    return [f"DROP TABLE {names}"]
