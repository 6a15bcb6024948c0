"""How PostgreSQL spells what engines spell differently."""

from __future__ import annotations

from collections.abc import Iterable

from taskmq.transport.sql.fragments import next_due
from taskmq.transport.sql.words import Words

COUNTS = ("taskmq_counts", "taskmq_count_deltas")

# A look for each key, as in the check of a publish: by statistics of few keys a join was turned round, and ``= ANY``
# became a filter; the keys of all queues were read, or all of one.
KEYED = """
SELECT idem_key, task_id, digest FROM unnest(:keys::text[]) r(key) CROSS JOIN LATERAL (
  SELECT idem_key, task_id, digest, expires_at FROM taskmq_keys
  WHERE queue_id=(SELECT queue_id FROM taskmq_queues WHERE namespace=:namespace AND name=:queue) AND idem_key=r.key
  LIMIT 1) k
WHERE expires_at IS NULL OR expires_at>:now
"""

WORDS = Words(
    value=lambda name: f"%({name})s",
    among=lambda name: f"= ANY(%({name})s)",
    pack=list,
    same="IS NOT DISTINCT FROM",
    lock=" FOR UPDATE",
    skip=" FOR UPDATE SKIP LOCKED",
    has_tag="t.tags::jsonb @> to_jsonb(%(tag)s::text)",
    counts=COUNTS,
    keyed=KEYED,
)

NEXT_DUE = WORDS.text(next_due("least"))
"""When something of these queues falls due."""


def integers(values: Iterable[int | None]) -> str:
    """An array of numbers as text, which is several times as fast as the driver's way."""
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"
