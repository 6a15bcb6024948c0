"""The ASGI application: routes by path, the workers' socket, and the node's life around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from taskmq.server.errors import ApiError, as_api_error, denied, invalid
from taskmq.server.http import Endpoint, no_such_path, request_id_of, version
from taskmq.server.node import Node
from taskmq.server.settings import Settings
from taskmq.server.table import ROUTES
from taskmq.server.workers.connection import Connection
from taskmq.server.workers.hub import Hub
from taskmq.wire import strict
from taskmq.wire.codes import SUBPROTOCOL

CONNECT = "/v1/workers/connect"


class Application:
    """The ASGI application of one node. ``node`` and ``hub`` are there for who runs it."""

    def __init__(self, settings: Settings) -> None:
        self.node = Node(settings)
        self.hub = Hub(self.node)
        paths: dict[str, list[Any]] = {}
        for route in ROUTES:
            paths.setdefault(route.path, []).append(route)
        routes: list[BaseRoute] = [Route(path, endpoint=Endpoint(self.node, found)) for path, found in paths.items()]
        routes.append(WebSocketRoute(CONNECT, endpoint=WorkerSocket(self.hub)))
        self._router: ASGIApp = Router(routes, redirect_slashes=False, default=_default, lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one socket, or the lifespan."""
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        await self.node.start()
        self.hub.start()
        try:
            yield
        finally:
            await self.drain(0.0)
            await self.node.stop()

    async def drain(self, grace: float | None = None) -> None:
        """Stop taking work and let what runs end; repeatable."""
        if self.node.closing:
            return
        self.node.closing = True
        self.node.changes.tell_all()
        await self.hub.shutdown(grace)


async def _default(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await refuse(scope, send, ApiError("NOT_FOUND", "there is no such path"))
    else:
        await no_such_path(scope, receive, send)


class WorkerSocket:
    """The upgrade of a worker's connection, and the connection."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Upgrade or refuse, then serve."""
        await receive()
        try:
            token = await self._check(scope)
        except (ApiError, TimeoutError) as error:
            await refuse(scope, send, as_api_error(error))
            return
        peer = (scope.get("client") or ("",))[0]
        connection = Connection(self._hub, receive, send, token, peer)
        self._hub.joined(connection)
        try:
            headers = [(b"taskmq-version", version().encode())]
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL, "headers": headers})
            await connection.serve()
        finally:
            self._hub.left(connection)

    async def _check(self, scope: Scope) -> str | None:
        """The token, if one is in the header; raises what refuses the upgrade."""
        hub, headers = self._hub, dict(scope["headers"])
        hub.node.check_open()
        token = None
        if b"authorization" in headers:
            token, identity = await hub.node.tokens.of_header(headers[b"authorization"].decode("latin-1"))
            if "workers:connect" not in identity.by_scope:
                raise denied("the token has no scope for this")
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != headers.get(b"host"):
            raise denied("this page is not of this server")
        hub.check_room((scope.get("client") or ("",))[0], token is None)
        if SUBPROTOCOL not in scope.get("subprotocols", ()):
            raise invalid(f"the subprotocol {SUBPROTOCOL} is missing", "header.Sec-WebSocket-Protocol")
        return token


async def refuse(scope: Scope, send: Send, error: ApiError) -> None:
    """Answer an upgrade with an envelope."""
    request_id = request_id_of(dict(scope["headers"]))
    body = strict.pack({"error": error.body(request_id)})
    fixed = {"content-type": "application/json", "request-id": request_id, "cache-control": "no-store"}
    headers = {**fixed, "taskmq-version": version(), **{k.lower(): v for k, v in error.headers.items()}}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.code})
        return
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": raw})
    await send({"type": "websocket.http.response.body", "body": body})
