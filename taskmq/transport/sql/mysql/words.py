"""How MySQL and MariaDB spell what engines spell differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from taskmq.transport.sql.fragments import next_due
from taskmq.transport.sql.words import Words

COUNTS = ("taskmq_counts", "taskmq_count_deltas")

WORDS = Words(
    value=lambda name: f"%({name})s",
    among=lambda name: f"IN %({name})s",
    pack=lambda values: tuple(values) or (None,),  # an empty list cannot be said; NULL is among nothing
    same="<=>",
    lock=" FOR UPDATE",
    skip=" FOR UPDATE SKIP LOCKED",
    has_tag="JSON_CONTAINS(t.tags, JSON_QUOTE(%(tag)s))",
    counts=COUNTS,
)

NEXT_DUE = WORDS.text(next_due("least"))
"""When something of these queues falls due."""


def numbers(values: Iterable[int]) -> str:
    """A list behind IN; the numbers are ours, so they are text at once."""
    return f"({', '.join(map(str, values)) or 'NULL'})"


def records(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """Rows as a table ``r`` with these columns, and its parameters.

    MariaDB has neither arrays nor column names for VALUES; JSON_TABLE was left out because the two disagree on nulls.
    """
    first = ", ".join(f"%s AS {name}" for name in names)
    more = f"SELECT {', '.join(['%s'] * len(names))}"
    text = " UNION ALL ".join([f"SELECT {first}", *[more] * (len(rows) - 1)])
    return f"({text}) r", [value for row in rows for value in row]


def listed(values: Iterable[int]) -> str:
    """Numbers as a table ``r`` with the column ``seq``."""
    return f"({' UNION ALL '.join(f'SELECT {value} AS seq' for value in values)}) r"
