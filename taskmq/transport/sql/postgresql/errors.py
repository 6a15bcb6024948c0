"""PostgreSQL's errors in the words of taskmq, with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from taskmq.errors import ConfigError, StoreFull, TaskMQError, TransportError, TransportUnavailable

CONFLICTS = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: the transaction was undone and may be run again."""
SAME_TASK = "ix_taskmq_tasks_id"
"""The index in which a task meets itself when its publish is sent again while the first one is still under way."""

_GONE = frozenset({"57P01", "57P02", "57P03", "08000", "08003", "08006", "25P03"})
"""The session was ended: by an administrator, a crash, a restart, or for idling in a transaction."""
_FULL = frozenset({"53100", "53400", "54000"})
_CANNOT_GROW = "could not extend file"
"""A file system's largest file, or a quota of the server's user, is no state of its own."""
_WAITED = frozenset({"55P03", "57014"})


def may_run_again(error: psycopg.Error) -> bool:
    """Whether the transaction was undone by others' doing and is worth another try."""
    if error.sqlstate == "23505":
        return error.diag.constraint_name == SAME_TASK
    return error.sqlstate in CONFLICTS


def lost(error: psycopg.Error) -> bool:
    """Whether it was the connection that ended."""
    if error.sqlstate is not None:
        return error.sqlstate in _GONE
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


@contextmanager
def map_errors() -> Iterator[None]:
    """Turn driver errors into TransportError and its kin; everything else passes."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: psycopg.Error) -> TaskMQError:
    """The error of taskmq that says what this one means."""
    state = error.sqlstate or ""
    said = _said(error)
    if state == "42501":
        return TransportError(f"the database user may not do this: {said}; taskmq doctor says what to grant")
    if state in ("42P01", "3F000"):
        return ConfigError(f"the database has no taskmq schema ({said}): run taskmq migrate up")
    if state == "42703":
        return ConfigError(f"the database has the schema of another taskmq ({said}): run taskmq migrate up")
    if state in ("25006", "25P02"):
        return TransportError(
            "the server takes no writes: it is a replica, or default_transaction_read_only is on; "
            "let the URL point to the primary (?target_session_attrs=read-write)"
        )
    if state in _FULL or said.startswith(_CANNOT_GROW):
        return StoreFull(f"the database cannot grow: {said}; nothing was stored")
    if state in _WAITED:
        return TransportUnavailable(
            f"{said}: some transaction holds what this one needs (see pg_stat_activity); nothing was stored, try again"
        )
    if state in CONFLICTS:
        return TransportUnavailable(f"the transaction met others again and again ({said}); nothing was stored")
    if state == "53300":
        return TransportUnavailable("the server has no connection left (max_connections); nothing was stored")
    if lost(error):
        return TransportUnavailable(f"the connection to the server was lost ({said}); nothing was stored")
    return TransportError(f"PostgreSQL: {said}")


def refused(error: psycopg.Error, where: str) -> TaskMQError:
    """Why no connection came about; ``where`` names the server without secrets."""
    said = _said(error)
    low = said.lower()
    if "password authentication failed" in low or "no password supplied" in low or "pg_hba.conf" in low:
        return ConfigError(f"{where}: the server refuses this user: {said}; check user, password and pg_hba.conf")
    if "role" in low and "does not exist" in low:
        return ConfigError(f"{where}: {said}; create it, or name another user in the URL")
    if "database" in low and "does not exist" in low:
        return ConfigError(f"{where}: {said}; create it: createdb, then taskmq migrate up")
    if "permission denied for database" in low:
        return ConfigError(f"{where}: {said}; grant CONNECT to the user")
    if "unsupported startup parameter" in low:
        return ConfigError(f"{where}: {said}; a pooler is in between: add ?prepared=off to the URL")
    if "invalid connection option" in low or ("invalid" in low and "value" in low):
        return ConfigError(f"{where}: {said}")
    return TransportUnavailable(f"{where}: no connection: {said}")


def _said(error: psycopg.Error) -> str:
    """The server's words on one line."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(text.split())
