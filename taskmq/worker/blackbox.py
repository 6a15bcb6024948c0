"""The black box of a child process: a page of memory that it shares with its worker and that survives it.

A child writes down which task it starts before it starts it, and keeps the outcomes it has not sent yet. When it dies,
of whatever and at whatever moment, the worker opens the box: the one that was running is known without a system call a
task, and nothing that had ended is lost or done again. It also holds what changes often and only its latest value
counts: the running task's progress, and the child's memory.

One side writes each field. A number that says "this is valid" is written after what it speaks of: the start's time
before its number, outcomes before their length. Progress can change while it is read, so it carries a checksum.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import zlib
from struct import Struct as Layout
from typing import NamedTuple

import msgspec

from taskmq.state import Progress

SIZE = 1 << 18
_NUMBER = Layout("<q")
_TIME = Layout("<d")
_NOTE = Layout("<qII")
_STARTED, _STARTED_AT, _LENGTH, _MEMORY, _PROGRESS = 0, 8, 16, 24, 32
_OUTCOMES = 4096
ROOM = SIZE - _OUTCOMES
"""Bytes of outcomes that fit."""

_progress = msgspec.msgpack.Decoder(Progress)
_encoder = msgspec.msgpack.Encoder()


class Note(NamedTuple):
    """The progress of the job with this number."""

    number: int
    progress: Progress


class BlackBox:
    """Both sides' view of it; ``fd`` is that of the memory, which the child inherits.

    It is not closed but dropped: the worker's threads look into it whenever they like, and the memory goes with the
    last reference.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)

    # ── the child writes ──

    def start(self, number: int, now: float) -> None:
        """Number so-and-so starts now."""
        _TIME.pack_into(self._map, _STARTED_AT, now)
        _NUMBER.pack_into(self._map, _STARTED, number)

    def keep(self, frame: bytes) -> bool:
        """Keep an outcome that is not sent yet; False when there is no room for it."""
        (length,) = _NUMBER.unpack_from(self._map, _LENGTH)
        end = length + len(frame)
        if end > ROOM:
            return False
        self._map[_OUTCOMES + length : _OUTCOMES + end] = frame
        _NUMBER.pack_into(self._map, _LENGTH, end)
        return True

    def sent(self) -> None:
        """What was kept has been sent. (Should the child die before it says so, the worker gets it twice.)"""
        _NUMBER.pack_into(self._map, _LENGTH, 0)

    def weigh(self, memory: int) -> None:
        """So many bytes does the child have in memory."""
        _NUMBER.pack_into(self._map, _MEMORY, memory)

    def note(self, number: int, progress: Progress) -> None:
        """The progress of the one that runs."""
        data = _encoder.encode(progress)
        self._map[_PROGRESS + _NOTE.size : _PROGRESS + _NOTE.size + len(data)] = data
        _NOTE.pack_into(self._map, _PROGRESS, number, len(data), zlib.crc32(data, number))

    # ── the worker reads ──

    def started(self) -> tuple[int, float]:
        """Which one was started last, and when; number 0: none yet."""
        (number,) = _NUMBER.unpack_from(self._map, _STARTED)
        (at,) = _TIME.unpack_from(self._map, _STARTED_AT)
        return number, at

    def kept(self) -> bytes:
        """The outcomes that are not sent yet, as frames. Exact only when the child does not run."""
        (length,) = _NUMBER.unpack_from(self._map, _LENGTH)
        return self._map[_OUTCOMES : _OUTCOMES + length]

    def memory(self) -> int:
        """Bytes, as last weighed."""
        (memory,) = _NUMBER.unpack_from(self._map, _MEMORY)
        return int(memory)

    def noted(self) -> Note | None:
        """The latest progress and whose it is; None when there is none, or it is being written."""
        number, length, check = _NOTE.unpack_from(self._map, _PROGRESS)
        if not length or length > _OUTCOMES - _PROGRESS - _NOTE.size:
            return None
        data = self._map[_PROGRESS + _NOTE.size : _PROGRESS + _NOTE.size + length]
        if zlib.crc32(data, number) != check:
            return None
        return Note(number, _progress.decode(data))


def shared_memory() -> int:
    """A file descriptor of fresh shared memory without a name, so that nothing is left behind."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("taskmq")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, SIZE)
    return fd


__all__ = ["ROOM", "BlackBox", "Note", "shared_memory"]
