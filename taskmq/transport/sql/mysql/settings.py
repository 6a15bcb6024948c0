"""A ``mysql://`` or ``mariadb://`` URL."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from taskmq.errors import ConfigError
from taskmq.transport.sql.mysql.drivers import driver_of
from taskmq.urls import without_secrets

POOL, PATIENCE = 4, 30.0
_KNOWN = ("pool", "timeout", "unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "connect_timeout")

MODE = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
"""What a server's sql_mode says must not change what our statements mean."""


class Settings:
    """A parsed ``mysql://user:password@host:3306/database?pool=4`` URL; raises ConfigError with the way out.

    Its scheme names the driver: ``mysql+mysqldb://`` is mysqlclient.
    """

    def __init__(self, url: str) -> None:
        shown = without_secrets(url)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{shown!r}: {error}") from error
        self.driver = driver_of(parts.scheme)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(options.keys() - set(_KNOWN))
        if unknown:
            raise ConfigError(f"{shown!r}: unknown option {unknown[0]!r}; known: {', '.join(_KNOWN)}")
        self.database = unquote(parts.path.strip("/"))
        if not self.database:
            raise ConfigError(f"{shown!r} names no database: write mysql://user:password@host/database")
        try:
            self.pool = int(options.pop("pool", POOL))
            self.patience = float(options.pop("timeout", PATIENCE))
            wait = int(options.pop("connect_timeout", 10))
        except ValueError:
            self.pool = wait = 0
            self.patience = 0.0
        if not 1 <= self.pool <= 1000 or not 0 < self.patience < 1e6 or wait < 1:
            raise ConfigError(f"{shown!r}: pool is a number of connections from 1, timeout one of seconds above 0")
        self.parameters: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": port or 3306,
            "user": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else "",
            "database": self.database,
            "connect_timeout": wait,
            **options,
        }
        place = options.get("unix_socket") or f"{self.parameters['host']}:{self.parameters['port']}"
        self.where = f"database {self.database} on {place}"
