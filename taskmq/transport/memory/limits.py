"""The memory store's concurrency limits: the keys, and the parked tasks in order. The rule is ``policy/limits.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sortedcontainers import SortedDict, SortedList

from taskmq.policy.limits import LimitedKey
from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.base import LimitInfo
from taskmq.transport.memory.lines import Spec

Place = tuple[str, Spec]
"""A handler of a queue."""


class Line(NamedTuple):
    """Where a task of a limit is parked."""

    key: str
    n: int
    queue: str
    spec: Spec

    @property
    def place(self) -> Place:
        """The handler's queue and spec."""
        return self.queue, self.spec


class Waiting:
    """The parked tasks of one line, each with the tag of its turn."""

    def __init__(self) -> None:
        self._order: SortedList[tuple[int, int, int, int, str]] = SortedList()
        """(first and second part of the sort key, tag, seq, partition)."""
        self._tags: dict[int, tuple[Key, int, str]] = {}
        """seq → sort key, tag, partition."""
        self._keys: dict[str, SortedList[Key]] = {}
        self._of: dict[str, SortedList[int]] = {}
        """Partition → its tags."""

    def __bool__(self) -> bool:
        return bool(self._tags)

    def last(self, code: str) -> int | None:
        """The greatest tag of a partition."""
        return self._of[code][-1] if code in self._of else None

    def add(self, key: Key, tag: int, code: str) -> None:
        """A task is parked."""
        self._tags[key[2]] = (key, tag, code)
        self._order.add((key[0], key[1], tag, key[2], code))
        self._keys.setdefault(code, SortedList()).add(key)
        self._of.setdefault(code, SortedList()).add(tag)

    def remove(self, seq: int) -> int:
        """A task is parked no more; its tag."""
        key, tag, code = self._tags.pop(seq)
        self._order.remove((key[0], key[1], tag, seq, code))
        self._keys[code].remove(key)
        self._of[code].remove(tag)
        if not self._keys[code]:
            del self._keys[code], self._of[code]
        return tag

    def first(self) -> Key:
        """The task that returns next: its partition's first, which gets the tag of the turn."""
        *_, seq, code = self._order[0]
        key, tag, _ = self._tags[seq]
        best: Key = self._keys[code][0]
        if best != key:
            other = self.remove(best[2])
            self.remove(seq)
            self.add(best, tag, code)
            self.add(key, other, code)
        return best


class Limits:
    """All keys of the store."""

    def __init__(self) -> None:
        self._keys: dict[str, LimitedKey[Place]] = {}
        self._waiting: dict[Line, Waiting] = {}
        self._owing: dict[str, SortedDict[Line, None]] = {}
        """Queue → its lines that are owed a return."""

    def free(self, limit: Limit) -> int:
        """Slots that a task with this limit may take."""
        known = self._keys.get(limit.key)
        return limit.n if known is None else known.free(limit.n)

    def start(self, limit: Limit) -> None:
        """A slot is taken."""
        self._keys.setdefault(limit.key, LimitedKey()).start()

    def release(self, limit: Limit) -> None:
        """A slot is given back."""
        self._keys[limit.key].release()
        self._noted(limit.key)

    def missed(self, line: Line) -> None:
        """A task that stood in line for a free slot cannot take it."""
        if line.key in self._keys:
            self._keys[line.key].missed(line.place, line.n)
            self._noted(line.key)

    def park(self, line: Line, key: Key, code: str, weight: int, *, turns: bool) -> None:
        """A task waits for a slot; ``turns``: partitions take turns at them."""
        parked = self._keys.setdefault(line.key, LimitedKey()).park(line.place, line.n)
        waiting = self._waiting.setdefault(line, Waiting())
        waiting.add(key, parked.tag(waiting.last(code), weight) if turns else 0, code)

    def unpark(self, line: Line, seq: int) -> None:
        """A parked task returns to its line, or has ended."""
        waiting = self._waiting[line]
        tag = waiting.remove(seq)
        self._keys[line.key].unpark(line.place, line.n, tag)
        if not waiting:
            del self._waiting[line]
            self._settled(line)
        self._noted(line.key)

    def owing(self, queue: str) -> list[Line]:
        """The lines that are owed a return, by key, n and handler."""
        return list(self._owing.get(queue, ()))

    def first_owed(self, line: Line) -> Key | None:
        """The next task that is to return to its line, if one is owed."""
        known = self._keys.get(line.key)
        if known is None or not known.owed(line.place, line.n):
            self._settled(line)
            return None
        return self._waiting[line].first()

    def returned(self, line: Line) -> None:
        """One that was owed stands in line and can start."""
        if line.key in self._keys:
            self._keys[line.key].returned(line.place, line.n)

    def _settled(self, line: Line) -> None:
        if line.queue in self._owing:
            self._owing[line.queue].pop(line, None)

    def _noted(self, key: str) -> None:
        """Keep the index of who is owed, and forget a key that nothing keeps."""
        known = self._keys[key]
        for ((queue, spec), n), parked in known.lines.items():
            if parked.owed:
                self._owing.setdefault(queue, SortedDict())[Line(key, n, queue, spec)] = None
        if known.empty():
            del self._keys[key]

    def infos(self, keys: Iterable[str]) -> list[LimitInfo]:
        """These keys, or all, ordered."""
        return [
            LimitInfo(key=key, running=known.running, parked=sum(line.parked for line in known.lines.values()))
            for key, known in ((key, self._keys[key]) for key in sorted(set(keys) or self._keys) if key in self._keys)
        ]
