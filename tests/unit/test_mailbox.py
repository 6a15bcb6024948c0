"""The mailbox of a pool's thread: no ring is lost, at whatever moment it comes."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import cast

import pytest

from taskmq.worker.executor import Executor
from taskmq.worker.frames import Hello
from taskmq.worker.handoff import Desk
from taskmq.worker.news import News
from taskmq.worker.pools.processes import ProcessesPool


@pytest.fixture
def pool() -> Iterator[ProcessesPool]:
    """A pool of processes before its thread starts: the test listens in its place."""
    unused = cast(Executor, None), lambda: Hello([], [], "", 0, ""), cast(News, None)
    it = ProcessesPool(Desk(1), *unused, max_tasks=None, max_memory=None)
    it._pipe = os.pipe()
    for end in it._pipe:
        os.set_blocking(end, False)
    yield it
    for end in it._pipe:
        os.close(end)


def test_a_ring_while_the_thread_takes_the_ring_before_is_not_the_last_one_heard(
    pool: ProcessesPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring whose byte the reader swallows may not leave the mailbox in the belief that it still rings."""
    read, heard = os.read, []

    def interrupted(descriptor: int, count: int) -> bytes:
        pool._mail.put(lambda: heard.append("second"))
        return read(descriptor, count)

    pool._mail.put(lambda: heard.append("first"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", interrupted)
        pool._listen(select.POLLIN)
    assert heard == ["first", "second"]
    pool._mail.put(lambda: heard.append("third"))
    assert select.select([pool._pipe[0]], [], [], 0)[0]
