"""A Redis URL, taken apart."""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.connection import parse_url

from taskmq.errors import ConfigError
from taskmq.transport.redis.keys import DEFAULT_PREFIX
from taskmq.urls import without_secrets

CONNECT_TIMEOUT = 5.0
REPLY_TIMEOUT = 30.0
CLUSTER_REPLY_TIMEOUT = 5.0
"""A node that is silent for so long may have been replaced meanwhile."""
_DRIVER_OPTIONS = frozenset(
    {
        *("db", "socket_timeout", "socket_connect_timeout", "socket_keepalive", "client_name"),
        *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"),
        *("ssl_cert_reqs", "ssl_check_hostname"),
    }
)
_OWN_OPTIONS = ("prefix", "lua", "cluster", "min_replicas", "allow_eviction")


class Settings:
    """A ``redis://``, ``rediss://``, ``valkey://`` or ``unix://`` URL, taken apart; raises ConfigError."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        given = dict(query)
        self.shown = without_secrets(url)
        unknown = sorted(set(given) - set(_OWN_OPTIONS) - _DRIVER_OPTIONS)
        if unknown:
            known = ", ".join((*_OWN_OPTIONS, *sorted(_DRIVER_OPTIONS)))
            raise ConfigError(f"{self.shown}: unknown option {unknown[0]!r}; there are {known}")
        self.prefix = given.get("prefix", DEFAULT_PREFIX)
        self.lua = self._switch(given, "lua", {"on": True, "off": False}, True)
        self.cluster = self._switch(given, "cluster", {"1": True, "0": False}, False)
        self.allow_eviction = self._switch(given, "allow_eviction", {"1": True, "0": False}, False)
        self.min_replicas = self._min_replicas(given.get("min_replicas", "0"))
        if self.min_replicas and not self.cluster:
            raise ConfigError(
                f"{self.shown}: min_replicas is for a cluster; without cluster=1 nobody would wait for them"
            )
        if not self.prefix:
            raise ConfigError(f"{self.shown}: the prefix is empty; it keeps this program's keys apart from others'")
        rest = urlencode([(name, value) for name, value in query if name not in _OWN_OPTIONS])
        scheme = "redis" if parts.scheme == "valkey" else parts.scheme
        user, at, hosts = parts.netloc.rpartition("@")
        try:
            first, *others = (
                parse_url(f"{scheme}://{user}{at}{host}{parts.path}?{rest}")  # type: ignore[no-untyped-call]
                for host in hosts.split(",")
            )
        except ValueError as error:
            raise ConfigError(f"{self.shown}: {error}") from error
        kwargs = first
        self.nodes = [(node.get("host", "localhost"), node.get("port", 6379)) for node in (first, *others)]
        if others and not self.cluster:
            raise ConfigError(f"{self.shown}: several hosts are the nodes of a cluster: add cluster=1 to the URL")
        if scheme == "unix" and not kwargs.get("path"):
            raise ConfigError(f"{self.shown}: a unix:// URL needs the path of a socket, unix:///run/redis.sock?db=0")
        path = parts.path.strip("/")
        if scheme != "unix" and path and not path.isdigit():
            raise ConfigError(f"{self.shown}: the path must be the number of a database, not {path!r}")
        if self.cluster:
            self._check_cluster(scheme, kwargs)
        self.connection_class = kwargs.pop("connection_class", redis.Connection)
        self.kwargs: dict[str, Any] = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_timeout": CLUSTER_REPLY_TIMEOUT if self.cluster else REPLY_TIMEOUT,
            **kwargs,
            "protocol": 2,
        }

    def _min_replicas(self, text: str) -> int:
        if not text.isdigit():
            raise ConfigError(f"{self.shown}: min_replicas={text} is not a number of replicas")
        return int(text)

    def _check_cluster(self, scheme: str, kwargs: dict[str, Any]) -> None:
        if scheme == "unix":
            raise ConfigError(f"{self.shown}: a cluster is reached by host and port, not by a socket's path")
        if kwargs.get("db", 0) != 0:
            raise ConfigError(f"{self.shown}: a cluster has only database 0, not {kwargs['db']}")
        if "{" in self.prefix or "}" in self.prefix:
            raise ConfigError(
                f"{self.shown}: the prefix {self.prefix!r} has a brace, which in a cluster decides where a key lives"
            )

    def at(self, host: str, port: int) -> Settings:
        """The same for one node of the cluster."""
        settings = copy.copy(self)
        settings.kwargs = {**self.kwargs, "host": host, "port": port}
        settings.shown = f"node {host}:{port} of {self.shown}"
        return settings

    def _switch(self, given: dict[str, str], name: str, values: dict[str, bool], default: bool) -> bool:
        if name not in given:
            return default
        if given[name] not in values:
            raise ConfigError(f"{self.shown}: {name}={given[name]} is none of {', '.join(values)}")
        return values[given[name]]
