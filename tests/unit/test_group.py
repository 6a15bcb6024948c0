"""Calls that come together: interrupts and forks must not wedge the others."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pytest

from taskmq.transport.group import Call, Group

WAIT = 10


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


class Desk:
    """Answers calls with their wish; blocks while ``gate`` is closed; is interrupted once when told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.inside = threading.Event()
        self.interrupt = False
        self.groups: list[list[str]] = []
        self.group: Group[str, str] = Group(self.together)

    def together(self, calls: Sequence[Call[str, str]]) -> None:
        self.inside.set()
        assert self.gate.wait(WAIT)
        if self.interrupt:
            self.interrupt = False
            raise Interrupted
        self.groups.append([call.wish for call in calls])
        for call in calls:
            call.answer(call.wish)

    def start(self, wish: str, answers: dict[str, object]) -> threading.Thread:
        def work() -> None:
            try:
                answers[wish] = self.group.call(wish)
            except BaseException as error:
                answers[wish] = type(error)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def wait_for(self, waiting: int) -> None:
        while self.group.waiting() < waiting:
            threading.Event().wait(0.001)


def test_who_is_interrupted_while_leading_keeps_it_to_itself() -> None:
    """The others of the group are not told, and get their answers from the next leader."""
    desk, answers = Desk(), {}  # type: tuple[Desk, dict[str, object]]
    first = desk.start("first", answers)
    desk.inside.wait(WAIT)
    rest = [desk.start(name, answers) for name in "abc"]
    desk.wait_for(3)
    desk.interrupt = True
    desk.gate.set()
    for thread in [first, *rest]:
        thread.join(WAIT)
    assert answers == {"first": Interrupted, "a": "a", "b": "b", "c": "c"}
    assert desk.group.call("later") == "later"


def test_members_of_an_interrupted_group_are_called_again() -> None:
    """Also those whose call was under way when their leader was interrupted."""
    desk, answers = Desk(), {}  # type: tuple[Desk, dict[str, object]]
    first = desk.start("first", answers)
    desk.inside.wait(WAIT)
    rest = [desk.start(name, answers) for name in "abc"]
    desk.wait_for(3)

    original, interrupted = desk.together, []

    def once(calls: Sequence[Call[str, str]]) -> None:
        if len(calls) == 3 and not interrupted:
            interrupted.append(calls[0].wish)
            raise Interrupted
        original(calls)

    desk.group._together = once
    desk.gate.set()
    for thread in [first, *rest]:
        thread.join(WAIT)
    leader = interrupted[0]
    others = {name: name for name in "abc" if name != leader}
    assert answers == {"first": "first", leader: Interrupted, **others}


def test_who_is_interrupted_while_waiting_leaves_the_line() -> None:
    """Its place, and the lead if it has just got it, go to the next one."""
    desk, answers = Desk(), {}  # type: tuple[Desk, dict[str, object]]
    first = desk.start("first", answers)
    desk.inside.wait(WAIT)

    class Impatient:
        def acquire(self) -> bool:
            raise Interrupted

        def release(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taskmq.transport.group._held_lock", Impatient)
        with pytest.raises(Interrupted):
            desk.group.call("gone")
    second = desk.start("second", answers)
    desk.wait_for(1)
    desk.gate.set()
    first.join(WAIT)
    second.join(WAIT)
    assert answers == {"first": "first", "second": "second"}
    assert desk.groups == [["first"], ["second"]]


def test_a_forked_child_starts_with_an_empty_line() -> None:
    """A fork while another thread leads leaves no leader in the child: it leads itself."""
    desk, answers = Desk(), {}  # type: tuple[Desk, dict[str, object]]
    first = desk.start("first", answers)
    desk.inside.wait(WAIT)
    child = os.fork()
    if child == 0:
        desk.gate.set()
        os._exit(0 if desk.group.call("child") == "child" else 1)
    assert os.waitpid(child, 0)[1] == 0
    desk.gate.set()
    first.join(WAIT)
    assert answers == {"first": "first"}
