"""What other threads say to the one thread of a pool that must never block: letters, and one ring for all of them.

Waking that thread costs a system call, so it is rung once, however many letters come before it looks. It says first
that it has been woken (``opened``) and looks afterwards; who writes puts the letter first and rings afterwards. So a
letter that it does not see rings again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from taskmq.worker.handoff import Desk
from taskmq.worker.jobs import Hand

Letter = TypeVar("Letter")


class Mailbox(Generic[Letter]):
    """The box of one thread, and its hand at the desk. ``wake`` has that thread look; it must not raise.

    ``letters``  in order, taken from the left by that thread alone
    ``parked``   whether the desk rings when it has jobs
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.letters: deque[Letter] = deque()
        self.parked = False
        self._wake = wake
        self._rung = False

    # ── any thread ──

    def put(self, letter: Letter) -> None:
        """Leave a letter."""
        self.letters.append(letter)
        self.ring()

    def ring(self) -> None:
        """Have the thread look, unless it is about to."""
        if not self._rung:
            self._rung = True
            self._wake()

    def release(self) -> None:
        """The desk has jobs; called as a parked thread's lock would be."""
        self.parked = False
        self.ring()

    def gate(self, letter: Letter) -> Hand:
        """A hand that leaves this letter when it is released."""
        return _Gate(self, letter)

    # ── its own thread ──

    def opened(self) -> None:
        """It looks now: whoever comes from here on rings again."""
        self._rung = False

    def park(self, desk: Desk) -> bool:
        """Have the desk ring once it has jobs; False: it has some already, and will not."""
        self.parked = True  # before it is true: the desk may release at once
        if desk.park(self):
            return True
        self.parked = False
        return False


class _Gate(Generic[Letter]):
    __slots__ = ("_letter", "_mailbox")

    def __init__(self, mailbox: Mailbox[Letter], letter: Letter) -> None:
        self._mailbox = mailbox
        self._letter = letter

    def release(self) -> None:
        self._mailbox.put(self._letter)


__all__ = ["Mailbox"]
