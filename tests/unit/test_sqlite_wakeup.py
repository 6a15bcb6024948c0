"""How a wait on a SQLite file learns of what another connection has written."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from taskmq.testing.signals import PATIENCE
from taskmq.transport.sql.sqlite import wakeup
from taskmq.transport.sql.sqlite.wakeup import FOUND, NEVER, Deaf, Told, Wakeup

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


class File:
    """A database file with a flag in it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "f.db")
        with self.connection() as writer:
            writer.execute("PRAGMA journal_mode=WAL")
            writer.execute("CREATE TABLE flag(up)")
        self.looks = 0

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            yield connection
        finally:
            connection.close()

    def look(self, connection: sqlite3.Connection) -> float:
        self.looks += 1
        return FOUND if connection.execute("SELECT 1 FROM flag").fetchone() else NEVER

    def wait(self, bell: Wakeup, timeout: float = PATIENCE) -> bool:
        return bell._until(self.look, self.connection, nullcontext(), timeout, lambda: 0)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def while_waiting(file: File, bell: Wakeup, act: Callable[[sqlite3.Connection], Any]) -> bool:
    """What a wait answers during which somebody else does this."""
    answers: list[bool] = []
    with file.connection() as writer:
        writer.execute("SELECT 1 FROM flag").fetchall()  # the WAL is there, as with any open store
        thread = threading.Thread(target=lambda: answers.append(file.wait(bell)))
        thread.start()
        while not file.looks:
            pass
        act(writer)
        thread.join(2 * PATIENCE)
    return answers[0]


@pytest.mark.parametrize("trusted", [True, False])
def test_a_commit_of_another_connection_ends_the_wait(file: File, trusted: bool) -> None:
    """With the kernel's word or without."""
    bell = Wakeup()
    bell._trusted = trusted and bell._trusted
    assert while_waiting(file, bell, lambda writer: writer.execute("INSERT INTO flag VALUES(1)"))


def test_a_wake_ends_the_wait_with_nothing(file: File) -> None:
    """``wake`` is for the end of a worker: the wait returns, and says that there is no work."""
    bell = Wakeup()
    assert not while_waiting(file, bell, lambda _: bell.wake())


def test_a_wait_ends_when_its_time_is_over(file: File) -> None:
    """Nothing happens: False."""
    assert not file.wait(Wakeup(), timeout=0.01)


@LINUX
def test_a_quiet_file_is_hardly_looked_at(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is written the wait sleeps for long, and it is told of the first write."""
    sleeps: list[float] = []
    sleep = Told.sleep

    def recorded(self: Told, timeout: float, *, deaf: bool = False) -> tuple[bool, bool]:
        sleeps.append(timeout)
        return sleep(self, timeout, deaf=deaf)

    monkeypatch.setattr(Told, "sleep", recorded)
    monkeypatch.setattr(wakeup, "UNTOLD", 5.0)
    assert while_waiting(file, Wakeup(), lambda writer: writer.execute("INSERT INTO flag VALUES(1)"))
    assert sleeps[0] == 5.0
    assert all(time <= wakeup.POLL for time in sleeps[1:])


@LINUX
def test_a_kernel_that_does_not_tell_is_not_trusted_again(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that shows up without a word makes this wait, and all later ones, look by themselves."""

    def silent(self: Told, timeout: float, *, deaf: bool = False) -> tuple[bool, bool]:
        self._deaf.poll(timeout * 1000)
        return False, False

    monkeypatch.setattr(Told, "sleep", silent)
    monkeypatch.setattr(wakeup, "UNTOLD", 0.01)
    bell = Wakeup()
    assert while_waiting(file, bell, lambda writer: writer.execute("INSERT INTO flag VALUES(1)"))
    assert not bell._trusted
    with file.connection() as connection:
        assert isinstance(bell._sleeper(connection), Deaf)


@LINUX
def test_a_commit_that_comes_long_after_the_word_is_believed(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes its time between the write and the commit does not cost the kernel its trust."""
    monkeypatch.setattr(wakeup, "QUIET", 0.0)
    monkeypatch.setattr(wakeup, "UNTOLD", 0.01)
    bell = Wakeup()

    def slow(writer: sqlite3.Connection) -> None:
        with file.connection() as other:
            other.execute("UPDATE flag SET up=2")
        writer.execute("INSERT INTO flag VALUES(1)")

    assert while_waiting(file, bell, slow)
    assert bell._trusted


@LINUX
def test_watches_are_used_again(file: File) -> None:
    """One wait after another costs the kernel one watch."""
    bell = Wakeup()
    with file.connection() as keeps_the_wal:
        keeps_the_wal.execute("SELECT 1 FROM flag").fetchall()
        for _ in range(5):
            file.wait(bell, timeout=0.001)
    assert len(bell._spare) == 1
