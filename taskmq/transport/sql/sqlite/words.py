"""How SQLite spells what engines spell differently."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from taskmq.transport.sql.fragments import next_due
from taskmq.transport.sql.words import Words


def as_json_list(values: Iterable[Any]) -> str:
    """A list as a JSON parameter."""
    return msgspec.json.encode(list(values)).decode()


WORDS = Words(
    value=lambda name: f":{name}",
    among=lambda name: f"IN (SELECT value FROM json_each(:{name}))",
    pack=as_json_list,
    same="IS",
    lock="",
    skip="",
    has_tag="EXISTS (SELECT 1 FROM json_each(t.tags) WHERE value=:tag)",
)

NEXT_DUE = WORDS.text(next_due("min"))
"""When something of these queues falls due."""
