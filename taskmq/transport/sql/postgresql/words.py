"""How PostgreSQL spells what engines spell differently."""

from __future__ import annotations

from collections.abc import Iterable

from taskmq.transport.sql.fragments import next_due
from taskmq.transport.sql.words import Words

COUNTS = ("taskmq_counts", "taskmq_count_deltas")

WORDS = Words(
    value=lambda name: f"%({name})s",
    among=lambda name: f"= ANY(%({name})s)",
    pack=list,
    same="IS NOT DISTINCT FROM",
    lock=" FOR UPDATE",
    skip=" FOR UPDATE SKIP LOCKED",
    has_tag="t.tags::jsonb @> to_jsonb(%(tag)s::text)",
    counts=COUNTS,
)

NEXT_DUE = WORDS.text(next_due("least"))
"""When something of these queues falls due."""


def integers(values: Iterable[int | None]) -> str:
    """An array of numbers as text, which is several times as fast as the driver's way."""
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"
