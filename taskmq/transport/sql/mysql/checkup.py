"""What can be wrong with a MySQL or MariaDB database, for ``taskmq doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from taskmq.transport.base import Finding

Ask = Callable[[str], Sequence[Sequence[Any]]]
OLD_TRANSACTION = 300
"""Seconds after which an open transaction is worth a word."""


def checkup(ask: Ask, namespace: str) -> list[Finding]:
    """Everything found wrong with the database."""
    return [*durability(ask), *replica(ask), *old_transactions(ask)]


def durability(ask: Ask) -> Iterator[Finding]:
    """Commits that do not wait for the disk."""
    level = int(ask("SELECT @@innodb_flush_log_at_trx_commit")[0][0])
    if level != 1:
        yield Finding(
            check="durability",
            level="warning",
            text=f"innodb_flush_log_at_trx_commit={level}: a power cut may lose the last second of what was published",
            fix="set it to 1",
        )


def replica(ask: Ask) -> Iterator[Finding]:
    """A server that takes no writes."""
    if int(ask("SELECT @@read_only")[0][0]):
        yield Finding(
            check="replica",
            level="error",
            text="the server is read-only, as a replica is",
            fix="let the URL point to the primary",
        )


def old_transactions(ask: Ask) -> Iterator[Finding]:
    """A transaction that has been open for long; looked for only where this user may."""
    try:
        rows = ask(
            "SELECT trx_mysql_thread_id, coalesce(p.user, ''), coalesce(p.host, ''), "
            "timestampdiff(SECOND, trx_started, now()) FROM information_schema.innodb_trx "
            "LEFT JOIN information_schema.processlist p ON p.id=trx_mysql_thread_id "
            f"WHERE trx_started<=now()-INTERVAL {OLD_TRANSACTION} SECOND ORDER BY trx_started LIMIT 1"
        )
    except Exception:  # the right PROCESS is not everybody's
        return
    for thread, user, host, seconds in rows:
        yield Finding(
            check="snapshot",
            level="warning",
            text=f"a transaction has been open for {int(seconds) // 60:,} minutes (connection {thread}, user {user} on "
            f"{host}): nothing that was deleted since can be cleaned away, and claims get slower and slower",
            fix=f"end it: KILL {thread}",
        )
