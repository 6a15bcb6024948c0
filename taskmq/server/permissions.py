"""Who may do what: scopes, and a row for each route. A route without a row does not start (``http.py`` looks it up).

``+`` allowed · ``q`` allowed for the scope's queues, others are refused · absent: refused. ``+*``: only a scope that
covers every queue. A route may need two scopes at once; then the row says which one beside which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

SCOPES = (
    "tasks:submit",
    "tasks:read",
    "tasks:manage",
    "queues:manage",
    "schedules:manage",
    "workers:connect",
    "workers:consume",
    "limits:manage",
    "tokens:manage",
)
BOOTSTRAP = ("queues:manage", "tasks:submit", "tasks:read", "tasks:manage", "schedules:manage")
WORKER = ("workers:connect", "workers:consume")

Access = Literal["+", "q", "+*"]
_S, _R, _M, _Q = "tasks:submit", "tasks:read", "tasks:manage", "queues:manage"
_C, _CONNECT, _CONSUME = "schedules:manage", "workers:connect", "workers:consume"
_ANY_QUEUE_SCOPE: Mapping[str, Access] = dict.fromkeys((_S, _R, _M, _Q, _C, _CONNECT, _CONSUME), "q")

PUBLIC: Mapping[str, Access] = {}
"""Nobody needs a token."""
_QUEUE: Mapping[str, Access] = {_Q: "q"}

MATRIX: Mapping[str, Mapping[str, Access]] = {
    "POST /v1/tasks": {_S: "q"},
    "POST /v1/tasks:batch": {_S: "q"},
    "GET /v1/tasks": {_R: "q"},
    "GET /v1/tasks/{task_id}": {_R: "q"},
    "GET /v1/tasks/{task_id}/why": {_R: "q"},
    "POST /v1/tasks/{task_id}/cancel": {_S: "q", _M: "q"},
    "POST /v1/tasks/{task_id}/replay": {_M: "q"},
    "POST /v1/tasks:replay": {_M: "q"},
    "POST /v1/queues": {_Q: "+*"},
    "GET /v1/queues": _ANY_QUEUE_SCOPE,
    "GET /v1/queues/{queue_id}": _ANY_QUEUE_SCOPE,
    "PATCH /v1/queues/{queue_id}": _QUEUE,
    "DELETE /v1/queues/{queue_id}": _QUEUE,
    "POST /v1/queues/{queue_id}/pause": _QUEUE,
    "POST /v1/queues/{queue_id}/resume": _QUEUE,
    "POST /v1/queues/{queue_id}/purge": _QUEUE,
    "GET /v1/queues/{queue_id}/partitions": {_R: "q"},
    "POST /v1/queues/{queue_id}/partitions": _QUEUE,
    "GET /v1/workers/connect": {_CONNECT: "q"},
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /metrics": PUBLIC,
    "GET /openapi.json": PUBLIC,
    "GET /v1/schemas/worker.json": PUBLIC,
}


class Grant(msgspec.Struct, frozen=True):
    """One scope of a token: for all queues (``"*"``) or for those of these ids."""

    scope: str
    queues: str | list[str] = "*"

    def covers(self, queue_id: str) -> bool:
        """Whether it is for this queue."""
        return self.queues == "*" or queue_id in self.queues


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a token stands for."""

    token_id: str
    application: str
    application_id: str
    namespace: str
    environment: str
    environment_id: str
    grants: tuple[Grant, ...]
    expires_at: int | None = None
    by_scope: dict[str, list[Grant]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for grant in self.grants:
            self.by_scope.setdefault(grant.scope, []).append(grant)

    def may_call(self, row: Mapping[str, Access]) -> bool:
        """Whether any of its scopes opens the route at all."""
        return any(
            access != "+*" or any(grant.queues == "*" for grant in self.by_scope[scope])
            for scope, access in row.items()
            if scope in self.by_scope
        )

    def may_touch(self, scopes: Iterable[str], queue_id: str) -> bool:
        """Whether any of these scopes is its for this queue."""
        return any(grant.covers(queue_id) for scope in scopes for grant in self.by_scope.get(scope, ()))

    def visible_queues(self, scopes: Iterable[str]) -> list[str] | None:
        """The queues that these scopes cover; None: all."""
        grants = [grant for scope in scopes for grant in self.by_scope.get(scope, ())]
        if any(grant.queues == "*" for grant in grants):
            return None
        return sorted({queue for grant in grants for queue in grant.queues})


def parse_scope(text: str) -> tuple[str, list[str] | None]:
    """``S[:Q,…]`` of the command line: a scope, and the names of its queues (None: all); raises ValueError."""
    for scope in SCOPES:
        if text == scope:
            return scope, None
        if text.startswith(f"{scope}:"):
            names = [name for name in text[len(scope) + 1 :].split(",") if name]
            if names:
                return scope, names
    raise ValueError(f"{text!r} is no scope; there are: {', '.join(SCOPES)}")
