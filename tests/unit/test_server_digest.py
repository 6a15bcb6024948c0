"""What is the same content for an idempotency key: the canonical text, byte by byte."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import pytest

from taskmq.server import digest as digests
from taskmq.server.digest import canonical, digest
from taskmq.server.errors import ApiError
from taskmq.server.paging import GOOD_FOR, Cursors

TASK = {"queue": "q", "handler": "h"}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, '{"handler":"h"}'),
        ({"priority": 0, "max_attempts": 3, "payload": None, "delay_ms": 0, "partition_weight": 1}, '{"handler":"h"}'),
        ({"handler_version": "v1", "payload_version": "v1", "retention_ms": 604_800_000}, '{"handler":"h"}'),
        ({"retry": {}}, '{"handler":"h"}'),
        ({"retry": {"base_ms": 1000, "jitter": True}}, '{"handler":"h"}'),
        ({"retry": {"base_ms": 5}}, '{"handler":"h","retry":{"base_ms":5}}'),
        ({"idempotency_key": "k", "queue_id": "0" * 32, "traceparent": "x"}, '{"handler":"h"}'),
        ({"priority": 9}, '{"handler":"h","priority":9}'),
        ({"payload": {"b": None, "a": 0}}, '{"handler":"h","payload":{"a":0,"b":null}}'),
        ({"payload": 1.0}, '{"handler":"h","payload":1.0}'),
        ({"payload": [1e22, 1e-7, -0.0]}, '{"handler":"h","payload":[1e+22,1e-07,-0.0]}'),
        ({"payload": 10**30}, '{"handler":"h","payload":1000000000000000000000000000000}'),
        ({"payload": "\u2028\x00ü\n"}, '{"handler":"h","payload":"\u2028\\u0000ü\\n"}'),
        (
            {"available_at": "2030-01-01T01:00:00.5+01:00"},
            '{"available_at":"2030-01-01T00:00:00.500000Z","handler":"h"}',
        ),
        ({"deadline_ms": 1}, '{"deadline_ms":1,"handler":"h"}'),
    ],
)
def test_the_canonical_text_is_the_contract_s(more: dict[str, Any], text: str) -> None:
    fields = {**TASK, **more}
    assert canonical(fields).decode() == text
    assert digest(fields) == "v1:" + hashlib.sha256(text.encode()).hexdigest()


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, -1, 2**63, 10**40, rng.getrandbits(70)])
    if kind in (2, 3):
        return "".join(chr(rng.choice([*range(128), 0x80, 0xFF, 0x2028, 0x1F600])) for _ in range(rng.randrange(6)))
    if kind == 4:
        return rng.choice([1.5, 1e16, 1e-5, 123456789012345680.0, 5e-324])
    if kind == 5:
        return []
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {str(value(rng, 4)): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def test_the_quick_writer_writes_what_the_slow_one_does() -> None:
    rng = random.Random(7)
    exact = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    for _ in range(2000):
        content = value(rng)
        assert digests._encode(content) == exact.encode(content).encode()


def test_a_cursor_is_good_for_a_day() -> None:
    cursors = Cursors(b"key")
    cursor = cursors.make("x", "env", {"a": 1}, 1000.0)
    assert cursors.read(cursor, "env", {"a": 1}, 1000.0 + GOOD_FOR) == "x"
    for environment, filters, now in (
        ("env", {"a": 1}, 1001.0 + GOOD_FOR),
        ("other", {"a": 1}, 1000.0),
        ("env", {}, 1000.0),
    ):
        with pytest.raises(ApiError) as caught:
            cursors.read(cursor, environment, filters, now)
        assert (caught.value.code, caught.value.field) == ("INVALID_ARGUMENT", "query.cursor")
