"""A ``postgresql://`` URL: what of it is libpq's, and what is ours."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from taskmq.errors import ConfigError
from taskmq.urls import without_secrets

POOL = 4
"""Connections that write, beside the one for heartbeats, those that read, and the listener."""
PATIENCE = 30.0

PLANS = {
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "enable_memoize": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""A queue's tables change faster than their statistics: planned when a table was empty, a statement would scan it when
it has a million rows. The hot statements have one right plan each – nested loops over index ranges, in the order of
the index – so our own connections leave the planner nothing else. JIT compiled for 10–150 ms in each claim."""


class Settings:
    """A parsed URL; raises ConfigError with the way out.

    ``prepared`` False: there is a pooler in transaction mode (pgbouncer) between, so nothing is left on a session – no
    prepared statements, no settings, no LISTEN.
    """

    def __init__(self, url: str) -> None:
        shown = without_secrets(url)
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        ours = {name: value for name, value in options if name in ("prepared", "pool", "timeout", "listen")}
        rest = [(name, value) for name, value in options if name not in ours]
        scheme = "postgresql"
        self.conninfo = urlunsplit((scheme, parts.netloc, parts.path, urlencode(rest), ""))
        self.prepared = _switch(shown, "prepared", ours.get("prepared", "on"))
        self.listen = _switch(shown, "listen", ours.get("listen", "on")) and self.prepared
        try:
            self.pool = int(ours.get("pool", POOL))
            self.patience = float(ours.get("timeout", PATIENCE))
        except ValueError:
            self.pool, self.patience = 0, 0.0
        if not 1 <= self.pool <= 1000 or not 0 < self.patience < 1e6:
            raise ConfigError(f"{shown!r}: pool is a number of connections from 1, timeout one of seconds above 0")
        try:
            self.parameters = conninfo_to_dict(self.conninfo)
        except ProgrammingError as error:
            said = " ".join(str(error).split())
            raise ConfigError(f"{shown!r}: {said}; ours are pool, prepared, listen and timeout") from error
        host, port = self.parameters.get("host"), self.parameters.get("port")
        self.where = f"PostgreSQL {self.parameters.get('dbname') or ''} on {host or 'the default host'}".replace(
            "  ", " "
        )
        if port and not str(host or "").startswith("/"):
            self.where += f":{port}"


def _switch(shown: str, name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ConfigError(f"{shown!r}: {name} is on or off")
    return value == "on"
