"""The scripts of the library whose partitions this project's model takes up, called as ours are.

Its repository is public (Rinsvent/smart-redis-queue); nothing of it is here. Its Lua is read at run time from a
checkout: the strings given to ``redis.NewScript`` in ``scripts.go``. Its consumer takes up to a prefetch of tasks
with one call and acknowledges each with a call of its own; here as there. Calls go over the same kind of connection as
ours, one script a round trip.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path

from bench.common import BODY
from taskmq.ids import new_id
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.settings import Settings

_SCRIPT = re.compile(r"^var (\w+)Script = redis\.NewScript\(`(.*?)`\)", re.MULTILINE | re.DOTALL)
QUEUE = "bench"


class SourceLibrary:
    """Its producer and one of its consumers."""

    def __init__(self, url: str, checkout: Path, consumer: str = "c") -> None:
        texts = dict(_SCRIPT.findall((checkout / "scripts.go").read_text()))
        self._server = Server(Settings(url))
        self._add, self._get, self._ack = (self._load(texts[name]) for name in ("add", "get", "ack"))
        self._consumer = consumer

    def _load(self, text: str) -> str:
        self._server.command("SCRIPT", "LOAD", text)
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def publish(self, partitions: Sequence[str]) -> None:
        """One task with our body for each of these partitions; no partition: an empty code."""
        now = time.time_ns() // 1_000_000
        args = [arg for code in partitions for arg in (new_id(), code, 0, now, BODY)]
        self._server.command("EVALSHA", self._add, 0, QUEUE, len(partitions), *args)

    def fill(self, partitions: Sequence[str], batch: int = 1000) -> None:
        """Publish them all."""
        for start in range(0, len(partitions), batch):
            self.publish(partitions[start : start + batch])

    def get(self, prefetch: int) -> list[bytes]:
        """The ids of up to so many tasks."""
        reply: list[bytes] = self._server.command("EVALSHA", self._get, 0, QUEUE, self._consumer, prefetch)
        return reply[::4]

    def ack(self, ids: Sequence[bytes], *, together: bool = False) -> None:
        """Acknowledge each; ``together``: in one round trip, which its own client does not do."""
        commands = [("EVALSHA", self._ack, 0, QUEUE, task_id, self._consumer) for task_id in ids]
        if together:
            self._server.commands(commands)
        else:
            for command in commands:
                self._server.command(*command)

    def work_off(self, prefetch: int, count: int | None = None) -> int:
        """Get and acknowledge so many tasks, or all; how many there were."""
        done = 0
        while (count is None or done < count) and (ids := self.get(prefetch)):
            self.ack(ids)
            done += len(ids)
        return done
