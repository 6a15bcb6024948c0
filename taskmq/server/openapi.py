"""The OpenAPI 3.1 document, generated from the table of routes and its types; and the schema of worker messages."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from taskmq.server.answers import ErrorEnvelope
from taskmq.server.bodies import BatchItem
from taskmq.server.http import Route, version
from taskmq.server.permissions import MATRIX
from taskmq.server.table import ROUTES
from taskmq.server.workers.messages import KINDS
from taskmq.wire.codes import CODES

_REF = "#/components/schemas/{name}"
_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}


@cache
def document() -> dict[str, Any]:
    """The whole document."""
    kinds: set[type[Any]] = {ErrorEnvelope, BatchItem}
    for route in ROUTES:
        kinds |= {*route.answers.values(), *([route.body] if route.body else ())}
    schemas, components = _schemas(sorted(kinds, key=lambda kind: kind.__name__))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "taskmq", "version": version(), "description": "Tasks, queues and workers over HTTP."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "tmq_<id>_<secret>"}},
        },
    }


@cache
def worker_messages() -> dict[str, Any]:
    """JSON Schema of what a worker may send."""
    schemas, components = msgspec.json.schema_components(list(KINDS.values()), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "taskmq.worker.v1, messages of workers",
        "oneOf": list(schemas),
        "$defs": _plain(components),
    }


def _schemas(kinds: list[type[Any]]) -> tuple[dict[type[Any], Any], dict[str, Any]]:
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    return dict(zip(kinds, schemas, strict=True)), _plain(components)


def _plain(value: Any) -> Any:
    """Patterns as ECMAScript reads them: there ``$`` is the end and nothing else."""
    if isinstance(value, dict):
        return {k: v.replace(r"$(?!\n)", "$") if k == "pattern" else _plain(v) for k, v in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _operation(route: Route, schemas: dict[type[Any], Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _ID} for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    parameters += [{"name": param.name, "in": "query", "schema": dict(param.schema)} for param in route.query.values()]
    if route.needs_key:
        schema = {"type": "string", "minLength": 1, "maxLength": 512, "pattern": "^[!-~]([ -~]*[!-~])?$"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "required": True, "schema": schema})
    operation: dict[str, Any] = {
        "operationId": route.handler.__module__.rpartition(".")[2] + "." + route.handler.__name__,
        "summary": route.summary,
        "parameters": parameters,
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        content = {"application/json": {"schema": schemas[route.body]}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    if not route.public:
        operation["security"] = [{"token": []}]
        operation["x-scopes"] = dict(MATRIX[route.name])
    return operation


def _responses(route: Route, schemas: dict[type[Any], Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        data = {"type": "object", "required": ["data"], "properties": {"data": schemas[kind]}}
        responses[str(status)] = {"description": "done", "content": {"application/json": {"schema": data}}}
    if not responses and route.public:
        responses["200"] = {"description": "done"}
    implied = () if route.public else (401, 403, 429, 500, 503, 504)
    known = {code.status for code in CODES.values()}
    for status in sorted({*route.errors, *implied} & known):
        content = {"application/json": {"schema": schemas[ErrorEnvelope]}}
        responses[str(status)] = {"description": "refused", "content": content}
    return responses
