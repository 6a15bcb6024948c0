"""URL scheme → store. The only file that names the stores, as strings: a driver is imported when its URL is opened."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

from taskmq.clock import Clock
from taskmq.errors import ConfigError
from taskmq.transport.base import Schema, Store
from taskmq.urls import without_secrets

_MYSQL = ("mysql", "mariadb", "mysql+mysqldb", "mariadb+mysqldb")
_STORES = {
    "memory": "taskmq.transport.memory:open_url",
    "sqlite": "taskmq.transport.sql.sqlite.connection:open_url",
    "postgresql": "taskmq.transport.sql.postgresql.connection:open_url",
    **dict.fromkeys(_MYSQL, "taskmq.transport.sql.mysql.connection:open_url"),
    **dict.fromkeys(("redis", "rediss", "unix", "valkey"), "taskmq.transport.redis.open:open_url"),
}
_SCHEMAS = {
    "postgresql": "taskmq.transport.sql.postgresql.migrate:open_migrator",
    **dict.fromkeys(_MYSQL, "taskmq.transport.sql.mysql.migrate:open_migrator"),
}
_EXTRAS = {
    **dict.fromkeys(("redis", "rediss", "unix", "valkey"), "redis"),
    "postgresql": "postgres",
    **dict.fromkeys(_MYSQL, "mysql"),
    "amqp": "amqp",
    **dict.fromkeys(("http", "https"), "client"),
}
"""Scheme → the extra of this distribution that brings the store's driver."""
ENTRY_POINTS = "taskmq.transports"


def open_store(url: str, *, namespace: str = "default", clock: Clock | None = None) -> Store:
    """The store of this URL. ``clock`` overrides the store's clock, for tests.

    Raises ConfigError for an unknown scheme, a malformed URL or a missing extra, TransportError when it cannot open.
    """
    scheme = urlsplit(url).scheme if isinstance(url, str) else ""
    factory = _STORES.get(scheme) or _entry_point(scheme)
    if factory is None:
        known = ", ".join(f"{name}://" for name in sorted(_STORES) if "+" not in name)
        why = f"this version has no {scheme}:// store yet; it has" if scheme in _EXTRAS else "the scheme must be one of"
        raise ConfigError(f"no store for the URL {without_secrets(str(url))!r}: {why} {known}")
    return cast(Store, _imported(scheme, factory)(url, namespace=namespace, clock=clock))


def open_schema(url: str) -> Schema:
    """The schema of the database of this URL, to be migrated.

    Raises ConfigError for a store that has none, a malformed URL or a missing extra.
    """
    scheme = urlsplit(url).scheme
    factory = _SCHEMAS.get(scheme)
    if factory is None:
        known = ", ".join(f"{name}://" for name in sorted(_SCHEMAS) if "+" not in name)
        raise ConfigError(
            f"{without_secrets(url)!r} needs no migration: the store makes what it needs when it is opened; "
            f"only {known} is migrated"
        )
    return cast(Schema, _imported(scheme, factory)(url))


def _imported(scheme: str, name: str) -> Callable[..., Any]:
    """A store's function; raises ConfigError when its extra is missing."""
    module, _, function = name.partition(":")
    try:
        return cast(Callable[..., Any], getattr(importlib.import_module(module), function))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(scheme)
        if extra is None:
            raise
        raise ConfigError(
            f"the {scheme}:// store needs {error.name!r}, which is not installed: pip install taskmq[{extra}]"
        ) from error


def _entry_point(scheme: str) -> str | None:
    """A store that another distribution brings, through the entry-point group ``taskmq.transports``."""
    if not scheme:
        return None
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        return entry.value
    return None


__all__ = ["ENTRY_POINTS", "open_schema", "open_store"]
