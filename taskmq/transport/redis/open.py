"""Which store a URL of Redis means: a server or a cluster, with or without scripts on it."""

from __future__ import annotations

from taskmq.clock import Clock
from taskmq.transport.redis.cluster import RedisClusterTransport
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.inprocess import ClusterInProcess, InProcess
from taskmq.transport.redis.nodes import Cluster
from taskmq.transport.redis.runner import OnServer
from taskmq.transport.redis.settings import Settings
from taskmq.transport.redis.transport import RedisTransport


def open_url(url: str, *, namespace: str = "default", clock: Clock | None = None) -> RedisTransport:
    """The store of a ``redis://``, ``rediss://``, ``valkey://`` or ``unix://`` URL."""
    settings = Settings(url)
    if settings.cluster:
        cluster = Cluster(settings) if settings.lua else ClusterInProcess(settings)
        return RedisClusterTransport(cluster, namespace, clock)
    server = Server(settings)
    return RedisTransport(OnServer(server) if settings.lua else InProcess(server), namespace, clock)
