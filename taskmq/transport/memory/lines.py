"""Sorted lines that can be read as one, or only as far as a claim can run what stands in them (model.md §8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from typing import Generic, NamedTuple, TypeVar

from sortedcontainers import SortedList


class Spec(NamedTuple):
    """What a claim must be able to run to get a task: its handler and version, and whether it has a limit."""

    handler: str
    version: str
    keyed: bool


Runs = Callable[[Spec], bool]
E = TypeVar("E")


class Lines(Generic[E]):
    """A sorted line for each spec. So the first entry of some specs is found without walking the others."""

    def __init__(self) -> None:
        self._lines: dict[Spec, SortedList[E]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, entry: E, spec: Spec) -> None:
        """Put an entry in its place."""
        line = self._lines.get(spec)
        if line is None:
            line = self._lines[spec] = SortedList()
        line.add(entry)

    def remove(self, entry: E, spec: Spec) -> None:
        """Take an entry out."""
        line = self._lines[spec]
        line.remove(entry)
        if not line:
            del self._lines[spec]

    def walk(self, runs: Runs | None = None) -> Iterator[E]:
        """The entries in order; only those whose spec a claim can run, if that is given."""
        lines = [line for spec, line in self._lines.items() if runs is None or runs(spec)]
        return iter(lines[0]) if len(lines) == 1 else merge(*lines)  # type: ignore[type-var]

    def each(self) -> Iterator[Iterator[E]]:
        """The line of each spec."""
        return map(iter, self._lines.values())
