"""SQLite's errors in the words of taskmq, with the way out."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from taskmq.errors import ConfigError, StoreFull, TaskMQError, TransportError, TransportUnavailable


@contextmanager
def map_errors() -> Iterator[None]:
    """Turn driver errors into TransportError and its kin; everything else passes."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error) from error


def translate(error: sqlite3.Error) -> TaskMQError:
    """The error of taskmq that says what this one means."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return StoreFull("the database cannot grow: the disk, a quota or max_page_count is full; nothing was stored")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return TransportUnavailable("the database is locked by another program; nothing was stored, try again")
    if primary == sqlite3.SQLITE_NOTADB:
        return ConfigError("the file is not a SQLite database; choose another path or move it away")
    if primary == sqlite3.SQLITE_CORRUPT:
        return TransportError(f"the database is damaged ({error}); restore it from a backup or use .recover")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return TransportError("the database cannot be written: check the permissions of the file and its directory")
    if primary == sqlite3.SQLITE_CANTOPEN:
        return ConfigError("the database cannot be opened: check that its directory exists and may be written")
    if primary == sqlite3.SQLITE_IOERR:
        return TransportError(f"the disk failed ({error}); nothing was stored")
    return TransportError(f"SQLite: {error}")
