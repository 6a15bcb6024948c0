"""How one server is run. Everything that the protocol calls configurable is here, with its default."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from taskmq.errors import ConfigError
from taskmq.wire.codes import MAX_BATCH_BODY, MAX_MESSAGE, MAX_PAYLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Durations are seconds unless the name says ``_ms``; sizes are bytes.

    ``http_addr``       ``host:port``; port 0 takes a free one
    ``trusted_proxies`` networks whose ``X-Forwarded-For`` is believed
    ``metrics_token``   opens ``/metrics`` from elsewhere than this machine
    ``store_timeout``   without an answer of the store in time, the request is answered with TIMEOUT
    """

    database_url: str = field(repr=False)
    http_addr: str = "127.0.0.1:8080"
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    trusted_proxies: tuple[str, ...] = ()
    metrics_token: str | None = field(default=None, repr=False)
    node: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    max_body: int = MAX_MESSAGE
    max_batch_body: int = MAX_BATCH_BODY
    max_payload: int = MAX_PAYLOAD
    request_rate: float = 200.0
    request_burst: int = 400
    max_connections: int = 128
    max_anonymous: int = 16
    reserve_ms: int = 10_000
    heartbeat_ms: int = 10_000
    hello_timeout: float = 5.0
    heartbeat_timeout: float = 30.0
    store_timeout: float = 10.0
    body_idle: float = 30.0
    write_stall: float = 30.0
    grace: float = 10.0

    def __post_init__(self) -> None:
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key belong together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"there is no file {path}")
        if not self.loopback and self.tls_cert is None and not self.insecure:
            raise ConfigError(
                f"{self.http_addr} can be reached from other machines, and tokens would cross the network unencrypted: "
                "give --tls-cert and --tls-key, or --insecure behind a proxy that has them"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; raises ConfigError."""
        host, colon, port = self.http_addr.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"the address {self.http_addr!r} is not of the form host:port")
        return host.strip("[]"), int(port)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        host, _ = self.address
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return "http" if self.tls_cert is None else "https"
