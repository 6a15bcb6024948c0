"""The OpenAPI document drives requests to every route: whatever comes, it is never a bug of ours."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.server.kit import Running

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 9, 10, 2**31, 2**53, 2**63, 10**30, 0.5, 1e308, "", "x", "\u0000", "ü" * 300, "0" * 32,
    "a" * 129, "2030-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2030-02-30T00:00:00Z", [], [None], {}, {"x": 1},
    "SUCCEEDED", "../..", "%00", "🦉",
]  # fmt: skip


def made(schema: dict[str, Any], components: dict[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """A value of a schema, or, every now and then, one that is none."""
    if rng.random() < 0.15 or depth > 6:
        return rng.choice(ODD)
    if "$ref" in schema:
        return made(components[schema["$ref"].rpartition("/")[2]], components, rng, depth + 1)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return made(rng.choice(schema[key]), components, rng, depth + 1)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        wanted = [n for n in properties if n in schema.get("required", ()) or rng.random() < 0.3]
        value = {name: made(properties[name], components, rng, depth + 1) for name in wanted}
        if rng.random() < 0.05:
            value["surprise"] = rng.choice(ODD)
        return value
    if kind == "array":
        return [made(schema.get("items", {}), components, rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == "integer":
        low, high = schema.get("minimum", -10), schema.get("maximum", 10**6)
        return rng.choice([low, high, low - 1, high + 1, rng.randint(low, high)])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(["initial", "h", "v1", "0" * 32, "!p", "2030-01-01T00:00:00Z", rng.choice(ODD)])
    return rng.choice(ODD)


@pytest.mark.parametrize("seed", range(8))
def test_no_request_is_answered_with_a_bug(server: Running, seed: int) -> None:
    own, rng = server.tenant(f"generated-{seed}"), random.Random(seed)
    document = own.http.get("/openapi.json").json()
    components = document["components"]["schemas"]
    ids = [own.submit(f"seed{i}", delay_ms=i * 1000)["task_id"] for i in range(3)]
    ids.append(own.http.get("/v1/queues").json()["data"]["items"][0]["queue_id"])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for _ in range(12):
                place, query, headers = path, {}, {"Content-Type": "application/json"}
                for parameter in operation["parameters"]:
                    value = made(parameter["schema"], components, rng)
                    if parameter["in"] == "path":
                        text = rng.choice([*ids, "x", "%00"])
                        place = place.replace(f"{{{parameter['name']}}}", text)
                    elif parameter["in"] == "query":
                        query[parameter["name"]] = "0" if parameter["name"] == "wait_ms" else str(value)
                    else:
                        headers[parameter["name"]] = f"key-{rng.randrange(1000)}"
                body = operation.get("requestBody")
                content = None
                if body is not None:
                    schema = body["content"]["application/json"]["schema"]
                    content = json.dumps(made(schema, components, rng)).encode("utf-8", "surrogatepass")
                some = {name: query[name] for name in query if rng.random() < 0.4}
                response = own.http.request(method.upper(), place, params=some, content=content, headers=headers)
                assert response.status_code < 500, (method, place, some, content, response.text)
                documented = {*operation["responses"], "404"}
                assert str(response.status_code) in documented, (method, place, some, content, response.text)
    own.http.close()
