"""What can be wrong with a SQLite file and its settings, for ``taskmq doctor``.

Facts that another test, or another machine, could not make come through the names at the top of the module (the mount
table, the size of the disk), so that each fault can be planted.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Any

from taskmq.transport.base import Finding
from taskmq.transport.sql.codes import DUE

MIB = 1 << 20
MOUNTS = Path("/proc/mounts")
NETWORK = frozenset({"afs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs", "9p"})
LITTLE_ROOM, NO_ROOM = 256 * MIB, 32 * MIB
BIG_WAL = 256 * MIB
"""The log is cut back to 64 MiB at each checkpoint that gets through."""
PATIENCE = 5.0
"""Seconds for each look at all pages, or at all tasks; what takes longer is not looked at."""
LATE = 10_000_000

_OCTAL = re.compile(r"\\([0-7]{3})")

LATE_TASKS = f"""
SELECT count(*), min(due_at) FROM (SELECT due_at FROM taskmq_tasks t JOIN taskmq_queues q USING (queue_id)
  WHERE q.namespace=:namespace AND state={DUE} AND due_at<=:before LIMIT 1000)
WHERE EXISTS (SELECT 1 FROM taskmq_workers WHERE namespace=:namespace AND expires_at>:now)
"""

_JSON = {"body": "object", "attempt_log": "array", "tags": "array"}
_WRONG = tuple(
    f"{name} NOTNULL AND CASE WHEN json_valid({name}) THEN json_type({name})<>'{kind}' ELSE 1 END"
    for name, kind in _JSON.items()
)
DAMAGED_TASKS = f"SELECT count(*), min(id) FROM taskmq_tasks WHERE {' OR '.join(_WRONG)}"


def checkup(path: str, connection: sqlite3.Connection, namespace: str) -> list[Finding]:
    """Everything found wrong with the file at ``path``, which ``connection`` has open."""
    return [
        *durability(connection),
        *journal(connection),
        *writable(path),
        *filesystem(path),
        *room(path),
        *log_size(path),
        *integrity(path, connection),
        *content(connection),
        *promotion(connection, namespace),
    ]


def durability(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Commits that do not wait for the disk."""
    level = connection.execute("PRAGMA synchronous").fetchone()[0]
    if level == 1:
        yield Finding(
            check="durability",
            level="warning",
            text="synchronous=normal: a power cut may lose the last moments of what was published and settled",
            fix="leave ?synchronous=normal out of the URL, if that is not meant",
        )
    elif level == 0:
        yield Finding(
            check="durability",
            level="error",
            text="synchronous=off: a power cut may lose everything, and leave a damaged database",
            fix="leave ?synchronous=off out of the URL",
        )


def journal(connection: sqlite3.Connection) -> Iterator[Finding]:
    """No write-ahead log: readers and the writer stop each other."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        yield Finding(
            check="journal",
            level="error",
            text=f"the database is in journal mode {mode} although WAL was asked for: its file system cannot do it",
            fix="put the database on a local disk",
        )


def writable(path: str) -> Iterator[Finding]:
    """A file, or a directory, that this user may not write."""
    for what in (path, os.path.dirname(path)):
        if not os.access(what, os.W_OK):
            yield Finding(
                check="permissions",
                level="error",
                text=f"{what} cannot be written by this user",
                fix="give it to the user that the workers run as; the directory too, for the log and the lock file",
            )


def filesystem(path: str) -> Iterator[Finding]:
    """A file system on which locks and shared memory cannot be relied on."""
    kind = file_system(path)
    if kind in NETWORK:
        yield Finding(
            check="filesystem",
            level="warning",
            text=f"{path} lies on a network file system ({kind}), where SQLite's locks and its log are not safe",
            fix="put it on a local disk, or use a store with a server",
        )


def file_system(path: str) -> str | None:
    """The kind of file system a path is on, as far as the mount table says."""
    real = os.path.realpath(path)
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None  # another operating system
    best, kind = "", None
    for line in lines:
        _, _, rest = line.partition(" ")
        point, _, rest = rest.partition(" ")
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), point)
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.partition(" ")[0]
    return kind


def room(path: str) -> Iterator[Finding]:
    """A disk that is nearly full."""
    free = disk_usage(os.path.dirname(path)).free
    if free < LITTLE_ROOM:
        yield Finding(
            check="disk",
            level="error" if free < NO_ROOM else "warning",
            text=f"the disk of {path} has {free / MIB:,.0f} MiB left; when it is full nothing can be published",
            fix="make room, or move the database",
        )


def log_size(path: str) -> Iterator[Finding]:
    """A write-ahead log that no checkpoint gets through."""
    try:
        size = os.path.getsize(f"{path}-wal")
    except OSError:
        return
    if size > BIG_WAL:
        yield Finding(
            check="wal",
            level="warning",
            text=f"the log {path}-wal has {size / MIB:,.0f} MiB: some program keeps an old reading transaction open",
            fix="find it (lsof, fuser) and end its transaction; the log then shrinks by itself",
        )


def integrity(path: str, connection: sqlite3.Connection) -> Iterator[Finding]:
    """Pages that are damaged, as far as a few seconds go."""
    try:
        row = _in_time(connection, "PRAGMA quick_check(1)")
        answer = "ok" if row is None else str(row[0])
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        yield Finding(
            check="integrity",
            level="error",
            text=f"{path} is damaged: {' '.join(answer.split())}",
            fix="stop the workers; restore a backup, or rescue what is left: sqlite3 old.db .recover | sqlite3 new.db",
        )


def content(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Unfinished tasks in whose rows there is what taskmq never writes, as far as a few seconds go.

    Only JSON can be wrong: a value of another kind is refused by the table (STRICT).
    """
    row = _in_time(connection, DAMAGED_TASKS)
    if row is not None and row[0]:
        yield Finding(
            check="content",
            level="error",
            text=(
                f"{row[0]:,} unfinished tasks have been changed by another program, e.g. {row[1]!r}; "
                "what cannot be read of them counts as absent"
            ),
            fix="mend the rows of taskmq_tasks; one without readable arguments is dead at its first claim",
        )


def _in_time(connection: sqlite3.Connection, statement: str) -> Any:
    """The first row, or None when it takes too long."""
    end = time.monotonic() + PATIENCE
    connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    try:
        return connection.execute(statement).fetchone()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            return None
        raise
    finally:
        connection.set_progress_handler(None, 0)


def promotion(connection: sqlite3.Connection, namespace: str) -> Iterator[Finding]:
    """Tasks that fell due and did not come into their line, although there are workers."""
    now = time.time_ns() // 1000
    parameters = {"namespace": namespace, "now": now, "before": now - LATE}
    count, first = connection.execute(LATE_TASKS, parameters).fetchone()
    if count:
        yield Finding(
            check="housekeeping",
            level="warning",
            text=f"{count:,} tasks fell due up to {(now - first) / 1e6:,.0f} s ago and are not in their line yet",
            fix="look at the workers' logs for errors of maintenance, and whether a queue has a worker at all",
        )
