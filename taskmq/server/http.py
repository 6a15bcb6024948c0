"""Typed routes over ASGI: one place where the order of checks is kept, so that no handler can get it wrong.

404 and 405 → 401 → 403 without the scope → 429 → 415 and 413 → 400 → the handler, which goes on with 404 of a
resource, 403 of its queue, 412, 409 and quotas. A handler gets a ``Call`` whose body and query are of the declared
types, and returns a ``Reply``; whatever it raises becomes the envelope of an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from taskmq.server.auth import unauthenticated
from taskmq.server.errors import ApiError, as_api_error, denied, invalid, not_found, too_large
from taskmq.server.params import Param, read_query
from taskmq.server.permissions import MATRIX, Identity
from taskmq.wire import strict
from taskmq.wire.codes import MAX_BATCH_BODY

if TYPE_CHECKING:
    from taskmq.server.node import Node

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("taskmq.server")

DROPPING, MOST_DROPPED = 2.0, 4 * MAX_BATCH_BODY
"""Seconds and bytes of a body that is too large, after its answer."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}\Z")
_CONTENT_TYPE = re.compile(r'application/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?\Z', re.IGNORECASE)
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?\Z", re.DOTALL)
_UNKNOWN = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`\Z", re.DOTALL)


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A body without fields; it may be left out."""


@dataclass(slots=True)
class Call:
    """A request that has passed all checks that need no store."""

    node: Node
    identity: Identity
    path: dict[str, str]
    query: dict[str, Any]
    body: Any
    fields: dict[str, Any]
    """The body as it was sent, decoded: for the digest."""
    headers: Mapping[bytes, bytes]

    async def on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work for the caller."""
        return await self.node.on_behalf(self.identity.environment_id, "http", work, *args, **kwargs)

    def header(self, name: bytes) -> str | None:
        """A header's value."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


@dataclass(slots=True)
class Reply:
    """What a handler answers: ``data`` in its envelope, or ``raw`` text of another type."""

    data: dict[str, Any] | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    content_type: str = "application/json"


Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path. ``answers``: status → type of the data, for the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[Any] | None = None
    body_optional: bool = False
    query: Mapping[str, Param] = field(default_factory=dict)
    batch: bool = False
    needs_key: bool = False
    answers: Mapping[int, type[Any]] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    public: bool = False

    @property
    def name(self) -> str:
        """As the permission matrix names it."""
        return f"{self.method} {self.path}"


class Endpoint:
    """All methods of one path, as an ASGI application."""

    def __init__(self, node: Node, routes: list[Route]) -> None:
        self._node = node
        self._routes = {route.method: route for route in routes}
        if "GET" in self._routes:
            self._routes["HEAD"] = self._routes["GET"]
        self._allow = ", ".join(sorted(self._routes))
        self._rows = {route.name: MATRIX[route.name] for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = request_id_of(headers)
        route = self._routes.get(scope["method"])
        try:
            if route is None:
                raise ApiError("METHOD_NOT_ALLOWED", "not for this path", headers={"Allow": self._allow})
            reply = await self._answer(route, scope, headers, receive)
        except Exception as error:  # every error leaves as an envelope
            reply = error_reply(error, request_id)
        rest = receive if reply.status == 413 else None
        await respond(send, reply, request_id, head=scope["method"] == "HEAD", rest=rest)
        path = route.path if route is not None else "other"
        self._node.metrics.request(scope["method"], path, reply.status, time.perf_counter() - started)

    async def _answer(self, route: Route, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Reply:
        if route.public:
            call = Call(self._node, ANONYMOUS, scope["path_params"], {"client": scope.get("client")}, None, {}, headers)
            return await route.handler(call)
        header = headers.get(b"authorization")
        token, identity = await self._node.tokens.of_header(None if header is None else header.decode("latin-1"))
        if not identity.may_call(self._rows[route.name]):
            raise denied("the token has no scope for this")
        self._node.tokens.spend(token)
        data = await self._read_body(route, headers, receive)
        query = read_query(scope["query_string"], route.query)
        fields, body = decode_body(data, route.body)
        self._node.check_open()
        call = Call(self._node, identity, scope["path_params"], query, body, fields, headers)
        return await route.handler(call)

    async def _read_body(self, route: Route, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        if route.body is None:
            return None
        settings = self._node.settings
        most = settings.max_batch_body if route.batch else settings.max_body
        length = headers.get(b"content-length")
        empty = length in (None, b"0") and b"transfer-encoding" not in headers
        if empty and route.body_optional:
            return None
        _check_content(headers)
        if length is not None and (not length.isdigit() or int(length) > most):
            raise too_large("body", most)
        chunks, size = [], 0
        while True:
            try:
                message = await asyncio.wait_for(receive(), settings.body_idle)
            except TimeoutError:
                close = {"Connection": "close"}
                raise ApiError("INVALID_ARGUMENT", "the rest of the body did not come", headers=close) from None
            if message["type"] == "http.disconnect":
                raise invalid("the body was cut off")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > most:
                raise too_large("body", most)
            chunks.append(chunk)
            if not message.get("more_body"):
                return b"".join(chunks)


ANONYMOUS = Identity("", "", "", "", "", "", ())


def _check_content(headers: Mapping[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"").decode("latin-1").strip()
    if not _CONTENT_TYPE.match(kind):
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", "the body must be application/json in UTF-8")
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", "the body must not be compressed")


def decode_body(data: bytes | None, kind: type[Any] | None) -> tuple[dict[str, Any], Any]:
    """The fields as they were sent, and the body of its type; raises ApiError."""
    if kind is None:
        return {}, None
    value = {} if data is None else strict.loads(data)
    return value, convert(value, kind)


def convert(value: Any, kind: type[Any]) -> Any:
    """A decoded value as a type; raises ApiError that names the place."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        match = _WHERE.match(str(error))
        assert match is not None
        what, path = match["what"], (match["path"] or "").lstrip(".")
        named = _UNKNOWN.match(what)
        place = f"{path}.{named[1][:60]}".lstrip(".") if named else path
        raise invalid(what[:300], place or None) from None


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The caller's request id, if it is one, else a new one."""
    given = headers.get(b"request-id")
    return given.decode() if given is not None and _REQUEST_ID.match(given) else secrets.token_hex(16)


def error_reply(error: BaseException, request_id: str) -> Reply:
    """An error in its envelope; a bug is logged with its traceback and told without."""
    known = as_api_error(error)
    if known.code == "INTERNAL":
        log.error("request %s failed", request_id, exc_info=error)
    return Reply(None, known.status, known.headers, strict.pack({"error": known.body(request_id)}))


async def respond(
    send: Send, reply: Reply, request_id: str, *, head: bool = False, rest: Receive | None = None
) -> None:
    """Send a reply with the headers that every answer has.

    ``rest``: where the unread body comes from. Closing on a caller that still sends makes its system throw away what
    it has been answered; so, after the answer, the rest is let run into the void for a while.
    """
    body = reply.raw if reply.raw is not None else strict.pack({"data": reply.data or {}})
    headers = {
        "content-type": reply.content_type,
        "content-length": str(len(body)),
        "request-id": request_id,
        "cache-control": "no-store",
        "taskmq-version": version(),
        **{name.lower(): value for name, value in reply.headers.items()},
    }
    if rest is not None:
        headers["connection"] = "close"
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if head else body, "more_body": rest is not None})
    if rest is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_drop(rest), DROPPING)
        await send({"type": "http.response.body", "body": b""})


async def _drop(receive: Receive) -> None:
    left = MOST_DROPPED
    while left > 0 and (message := await receive()).get("more_body"):
        left -= len(message.get("body", b""))


@cache
def version() -> str:
    """Of this distribution."""
    try:
        return importlib.metadata.version("taskmq")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"


async def no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    """404 for what no route matches."""
    request_id = request_id_of(dict(scope["headers"]))
    await respond(send, error_reply(not_found("there is no such path"), request_id), request_id)


__all__ = ["Call", "Endpoint", "Handler", "Nothing", "Reply", "Route", "convert", "no_such_path", "unauthenticated"]
