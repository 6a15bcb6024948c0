"""MySQL's and MariaDB's errors in the words of taskmq, with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from taskmq.errors import ConfigError, StoreFull, TaskMQError, TransportError, TransportUnavailable

CONFLICTS = frozenset({1213, 1205, 1020})
"""Deadlock, a lock that did not come, a record that changed: the transaction is undone and may be run again."""
_OF_CONNECTIONS = ("OperationalError", "InterfaceError")
"""DB-API's names: each driver has classes of its own."""
_GONE = frozenset({0, 1053, 1079, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2006, 2013, 2014, 2055, 4031})
_UNREACHABLE = frozenset({2002, 2003, 2005, 1040, 1203})
_READ_ONLY = frozenset({1290, 1792, 1836})
_FULL = frozenset({1021, 1114, 1041, 3019})
_RIGHTS = frozenset({1142, 1143, 1227, 1370})


def number(error: BaseException) -> int:
    """The error's number; 0 where it has none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def lost(error: BaseException) -> bool:
    """Whether it was the connection that ended."""
    return type(error).__name__ in _OF_CONNECTIONS and number(error) in _GONE


def may_run_again(error: BaseException) -> bool:
    """Whether the transaction was undone by others' doing and is worth another try."""
    if number(error) == 1062:  # the same task, sent again while the first publish is still under way
        return "ix_taskmq_tasks_id" in str(error)
    return number(error) in CONFLICTS


@contextmanager
def map_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn errors of this driver into TransportError and its kin; everything else passes."""
    try:
        yield
    except kind as error:
        raise translate(error) from error


def translate(error: Exception) -> TaskMQError:
    """The error of taskmq that says what this one means."""
    code, said = number(error), _said(error)
    if code in _RIGHTS:
        return TransportError(f"the database user may not do this: {said}; grant it, or use the user that migrated")
    if code in (1146, 1305):
        return ConfigError(f"the database has no taskmq schema ({said}): run taskmq migrate up")
    if code == 1054:
        return ConfigError(f"the database has the schema of another taskmq ({said}): run taskmq migrate up")
    if code in _READ_ONLY:
        return TransportError(
            f"the server takes no writes, as a replica does ({said}); let the URL point to the primary"
        )
    if code in _FULL:
        return StoreFull(f"the database cannot grow: {said}; nothing was stored")
    if code == 1153:
        return TransportError(f"{said}: raise max_allowed_packet, or publish fewer tasks at a time; nothing was stored")
    if code in CONFLICTS:
        return TransportUnavailable(f"the transaction met others again and again ({said}); nothing was stored")
    if code in _UNREACHABLE:
        return TransportUnavailable(f"the server cannot be reached: {said}")
    if lost(error):
        return TransportUnavailable(f"the connection to the server was lost ({said}); nothing was stored")
    return TransportError(f"MySQL: {said}")


def refused(error: Exception, where: str) -> TaskMQError:
    """Why no connection came about; ``where`` names the server without secrets."""
    code, said = number(error), _said(error)
    if code in (1045, 1698):
        return ConfigError(f"{where}: the server refuses this user: {said}; check user, password and host")
    if code == 1044:
        return ConfigError(f"{where}: {said}; grant the user its rights on the database")
    if code == 1049:
        return ConfigError(f"{where}: {said}; create it: CREATE DATABASE, then taskmq migrate up")
    return TransportUnavailable(f"{where}: no connection: {said}")


def _said(error: BaseException) -> str:
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return " ".join(text.split()) or type(error).__name__
