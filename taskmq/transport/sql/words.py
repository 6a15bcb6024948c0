"""One text for all engines: the statements that are not on the hot path, and how each engine writes their parameters.

In such a text ``:name`` is a value and ``IN @name`` asks for one of a list. An engine's ``Words`` turn it into its own
spelling, once, and pack the values accordingly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_LIST = re.compile(r"IN @(\w+)")
_VALUE = re.compile(r"(?<![:\w]):(\w+)")


@dataclass(frozen=True, kw_only=True, eq=False)
class Words:
    """How an engine spells what engines spell differently.

    ``value`` ``among``   a parameter by name, and "is one of the list" of that name
    ``pack``              a list as the driver takes it
    ``same``              equal, NULL to NULL included
    ``lock`` ``skip``     at the end of a SELECT: lock its rows; lock those that nobody else has locked
    ``has_tag``           whether the JSON array ``t.tags`` has the value ``:tag``
    ``counts``            the tables whose sum is the count of a handler's tasks
    ``keyed``             who has the keys ``:keys`` of a queue, where the common text may be planned badly
    """

    value: Callable[[str], str]
    among: Callable[[str], str]
    pack: Callable[[Iterable[Any]], Any]
    same: str
    lock: str
    skip: str
    has_tag: str
    counts: tuple[str, ...] = ("taskmq_counts",)
    keyed: str | None = None
    _known: dict[str, str] = field(default_factory=dict)

    def text(self, statement: str) -> str:
        """The statement in the engine's spelling."""
        known = self._known.get(statement)
        if known is None:
            lists = _LIST.sub(lambda match: self.among(match[1]), statement)
            known = self._known[statement] = _VALUE.sub(lambda match: self.value(match[1]), lists)
        return known

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters as the driver takes them."""
        return {
            name: value if value is None or isinstance(value, (str, int, float)) else self.pack(value)
            for name, value in parameters.items()
        }
