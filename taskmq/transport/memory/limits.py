"""The memory store's concurrency limits: the keys, and the parked tasks in order. The rule is ``policy/limits.py``."""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedDict, SortedList

from taskmq.policy.limits import LimitedKey
from taskmq.policy.order import Key
from taskmq.queue import Limit
from taskmq.transport.base import LimitInfo


class Limits:
    """All keys of the store."""

    def __init__(self) -> None:
        self._keys: dict[str, LimitedKey[str]] = {}
        self._parked: dict[tuple[str, Limit], SortedList[Key]] = {}
        self._owing: dict[str, SortedDict[tuple[str, int], Limit]] = {}
        """Queue → (key, n) of its lines that are owed a return."""

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

    def missed(self, queue: str, limit: Limit) -> None:
        """A task that stood in line for a free slot cannot take it."""
        if limit.key in self._keys:
            self._keys[limit.key].missed(queue, limit.n)
            self._noted(limit.key)

    def park(self, queue: str, limit: Limit, key: Key) -> None:
        """A task waits for a slot."""
        self._keys.setdefault(limit.key, LimitedKey()).park(queue, limit.n)
        self._parked.setdefault((queue, limit), SortedList()).add(key)

    def unpark(self, queue: str, limit: Limit, key: Key) -> None:
        """A parked task returns to its line, or has ended."""
        self._keys[limit.key].unpark(queue, limit.n)
        parked = self._parked[queue, limit]
        parked.remove(key)
        if not parked:
            del self._parked[queue, limit]
            self._owing.get(queue, SortedDict()).pop((limit.key, limit.n), None)
        self._noted(limit.key)

    def owing(self, queue: str) -> list[Limit]:
        """The limits whose lines are owed a return to this queue, by key and n."""
        return list(self._owing.get(queue, {}).values())

    def first_owed(self, queue: str, limit: Limit) -> Key | None:
        """The next task that is to return to its line, if one is owed."""
        known = self._keys.get(limit.key)
        if known is None or not known.owed(queue, limit.n):
            self._owing[queue].pop((limit.key, limit.n), None)
            return None
        return self._parked[queue, limit][0]

    def returned(self, queue: str, limit: Limit) -> None:
        """One that was owed stands in line and can start."""
        if limit.key in self._keys:
            self._keys[limit.key].returned(queue, limit.n)

    def _noted(self, key: str) -> None:
        """Keep the index of who is owed, and forget a key that nothing keeps."""
        known = self._keys[key]
        for (queue, n), line in known.lines.items():
            if line.owed:
                self._owing.setdefault(queue, SortedDict())[key, n] = Limit(key, n)
        if known.empty():
            del self._keys[key]

    def infos(self, keys: Iterable[str]) -> list[LimitInfo]:
        """These keys, or all, ordered."""
        return [
            LimitInfo(key=key, running=known.running, parked=sum(line.parked for line in known.lines.values()))
            for key, known in ((key, self._keys[key]) for key in sorted(set(keys) or self._keys) if key in self._keys)
        ]
