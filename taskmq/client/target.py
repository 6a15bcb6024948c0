"""Where the server is and who we are: arguments, environment, credentials file; and what of it is unsafe."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from taskmq.errors import ConfigError
from taskmq.urls import without_secrets
from taskmq.wire.credentials import Credentials


def resolve(url: str | None, credentials: Credentials | str | None, *, insecure: bool) -> tuple[str, Credentials]:
    """The server's URL without a slash at its end, and the credentials; raises ConfigError."""
    if credentials is None:
        credentials = os.environ.get("TASKMQ_CREDENTIALS_FILE") or None
    if credentials is None:
        raise ConfigError("whose credentials? Give credentials=, or set TASKMQ_CREDENTIALS_FILE")
    if not isinstance(credentials, Credentials):
        credentials = Credentials.read(os.fspath(credentials))
    found = url or os.environ.get("TASKMQ_URL") or credentials.url
    if not found:
        raise ConfigError("where is the server? Give url=, set TASKMQ_URL, or write it into the credentials file")
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{without_secrets(found)!r} is no server's URL: it must start with http:// or https://")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(f"{without_secrets(found)!r} has more than scheme, host, port and path")
    if parts.scheme == "http" and not insecure and not _loopback(parts.hostname):
        raise ConfigError(
            f"{without_secrets(found)!r} would send the token unencrypted to another machine: use https://, "
            "or say insecure=True"
        )
    return found.rstrip("/"), credentials


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
