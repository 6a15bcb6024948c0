"""What says how the server is: health, readiness, metrics, and its own description."""

from __future__ import annotations

import hmac
import ipaddress

from taskmq.server.auth import unauthenticated
from taskmq.server.errors import invalid
from taskmq.server.http import Call, Reply
from taskmq.server.metrics import CONTENT_TYPE
from taskmq.wire import strict


async def healthz(call: Call) -> Reply:
    """It answers."""
    return Reply({"status": "ok"})


async def readyz(call: Call) -> Reply:
    """Whether it can do its work."""
    checks = await call.node.checks()
    return Reply({"checks": checks}, 200 if all(checks.values()) else 503)


async def metrics(call: Call) -> Reply:
    """For Prometheus on this machine, or with the operator's token."""
    client = call.query.get("client")
    wanted = call.node.settings.metrics_token
    given = (call.header(b"authorization") or "").removeprefix("Bearer ").strip()
    local = client is not None and _is_loopback(client[0])
    if not local and not (wanted and hmac.compare_digest(given.encode(), wanted.encode())):
        raise unauthenticated()
    return Reply(raw=call.node.metrics.text(), content_type=CONTENT_TYPE)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def openapi(call: Call) -> Reply:
    """The OpenAPI document."""
    from taskmq.server.openapi import document

    return Reply(raw=strict.pack(document()))


async def worker_schema(call: Call) -> Reply:
    """The messages of the worker protocol."""
    from taskmq.server.openapi import worker_messages

    return Reply(raw=strict.pack(worker_messages()))


async def connect(call: Call) -> Reply:
    """A worker's socket needs an upgrade."""
    raise invalid("this path is a WebSocket: upgrade, with the subprotocol taskmq.worker.v1", "header.Upgrade")
