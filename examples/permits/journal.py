"""What handlers did, in the order in which they did it: one file to which the handlers of all processes append.

A line is one ``write`` to a file opened with ``O_APPEND``. The kernel puts the lines of several processes one behind
the other, each of them whole, and keeps them when the writer is killed the very next moment. So the order of the lines
is the order of what happened, no clock is compared with another one, and no process can unsay what it has done.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

What = Literal["start", "done"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: a handler has started on an event, or is done with it. ``at``: microseconds, for the charts only."""

    what: What
    event: int
    task: str
    epoch: int
    pid: int
    at: int


class Journal:
    """A journal file, for the handlers that write it: any number of threads and processes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, what: What, event: int, task: str, epoch: int) -> None:
        """Append one line. It is in the file when this returns."""
        entry = Entry(what, event, task, epoch, os.getpid(), time.time_ns() // 1000)
        os.write(self._file, json.dumps(asdict(entry)).encode() + b"\n")

    @cached_property
    def _file(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


class Reader:
    """A journal file, for the one who watches it grow. ``entries`` is what has been read so far."""

    def __init__(self, path: Path) -> None:
        self.entries: list[Entry] = []
        self._path = path
        self._offset = 0

    def read_on(self) -> list[Entry]:
        """The entries since the last call; raises ValueError for a line that is none."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        new = [Entry(**json.loads(line)) for line in whole.splitlines()]
        self.entries += new
        return new
