"""A publish inside somebody else's transaction: what kind of connection is it, and is there a transaction to be in?"""

from __future__ import annotations

from typing import Any, TypeVar

from taskmq.errors import InvalidArgument

C = TypeVar("C")


def driver_connection(connection: Any, kind: type[C], what: str) -> C:
    """The driver's connection in what the user gave: itself, SQLAlchemy's Connection or Session around it.

    Raises InvalidArgument for anything else; ``what`` names the driver's connection.
    """
    found = connection
    if hasattr(found, "get_bind") and callable(getattr(found, "connection", None)):  # a Session
        found = found.connection()
    if hasattr(found, "in_transaction") and hasattr(getattr(found, "connection", None), "driver_connection"):
        if not found.in_transaction():
            found.begin()  # else its commit() would do nothing
        found = found.connection.driver_connection
    if not isinstance(found, kind):
        name = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise InvalidArgument(f"connection is a {name}: this store takes {what}, or SQLAlchemy's over that driver")
    return found


def no_transaction(what: str) -> InvalidArgument:
    """A connection that commits each statement."""
    return InvalidArgument(f"the connection is in autocommit: {what} first, or the task would not be bound to anything")
