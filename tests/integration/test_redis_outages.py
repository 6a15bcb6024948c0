"""Answers that get lost, and servers that die, with work under way: nothing twice, nothing lost, on it goes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmq import App, Retry, outcome
from taskmq.errors import OutcomeUnknown, TransportError
from taskmq.outcome import Ack, Dead, Outcome
from taskmq.state import TaskState
from taskmq.testing.clock import FakeClock
from taskmq.testing.servers import Kind, RedisServer, redis_server
from taskmq.testing.signals import Record
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store
from taskmq.transport.registry import open_store
from tests.integration.redis_help import admin, message, own_server, publish, work_off

RESTARTS = 10
SECOND = 1_000_000
SOON = 5.0
"""Seconds within which work goes on when the server is back."""

both_modes = pytest.mark.parametrize("lua", ["on", "off"])
both_kinds = pytest.mark.parametrize("kind", ["redis", "valkey"])


class Cutter:
    """Stands before a server's socket. Told to, it passes a command on and cuts the connection instead of its reply."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.path = f"{folder}/cut.sock"
        self.cuts = 0
        self._sign: bytes | None = None
        self._mutex = threading.Lock()
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, verb: str, lua: str) -> None:
        """Lose the reply to the next call of this script, without Lua to the next transaction."""
        self._sign = f"_{verb}\r\n".encode() if lua == "on" else b"\r\nEXEC\r\n"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server.socket)
                cut = threading.Event()
                for work in (self._forward, self._backward):
                    threading.Thread(target=work, args=(client, server, cut), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                with self._mutex:
                    if self._sign is not None and self._sign in rest + data:
                        self._sign = None
                        self.cuts += 1
                        cut.set()
                    rest = data[1 - len(self._sign) :] if self._sign else b""
                server.sendall(data)
        server.close()

    def _backward(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(1 << 20)) and not cut.is_set():
                client.sendall(data)
        for side in (client, server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


class Cut:
    """Two stores on one server: one whose answers may get lost, and one beside it."""

    def __init__(self, kind: Kind, lua: str, folder: Path) -> None:
        server = redis_server(kind)
        self.lua = lua
        self.clock = FakeClock()
        self.cutter = Cutter(server, folder)
        self.url = f"unix://{self.cutter.path}?lua={lua}&prefix={folder.name}:"
        self.direct_url = server.url(f"{folder.name}:", lua=lua)
        self.store = open_store(self.url, clock=self.clock)
        self.direct = open_store(self.direct_url, clock=self.clock)

    def next(self, verb: str) -> None:
        self.cutter.cut(verb, self.lua)

    def claim(self, store: Store, limit: int) -> Reserve:
        return Reserve(queues=["q"], limit=limit, worker="w", lease=30 * SECOND)


@pytest.fixture
def cut(kind: Kind, lua: str, tmp_path: Path) -> Iterator[Cut]:
    cut = Cut(kind, lua, tmp_path)
    yield cut
    cut.direct.flush()
    cut.store.close()
    cut.direct.close()
    cut.cutter.close()


@both_modes
@both_kinds
def test_a_publish_whose_answer_was_lost_is_stored_once(cut: Cut) -> None:
    """The client sends it again by itself; single tasks, batches, keys and partitions are all stored once."""
    publish(cut.store)
    batches = [
        [message()],
        [message(partition="!x") for _ in range(5)],
        [message(key="k"), message(), message(priority=4)],
    ]
    for batch in batches:
        cut.next("publish")
        receipts = cut.store.publish(Publish(messages=batch))
        assert [receipt.id for receipt in receipts] == [m.id for m in batch]
    assert cut.cutter.cuts == 3
    assert cut.direct.stats(["q"])[0].ready == 10
    done = work_off(cut.direct)
    assert len(done) == len(set(done)) == 10


@both_modes
@both_kinds
@pytest.mark.parametrize("how", ["ack", "retry", "dead"])
def test_an_outcome_whose_answer_was_lost_counts_once(cut: Cut, how: str) -> None:
    """Who does not know says so; sent again, it is refused, and nothing has happened twice."""
    wishes: dict[str, Outcome] = {
        "ack": Ack(b'"first"'),
        "retry": outcome.Retry(10 * SECOND, error="E"),
        "dead": Dead("failed", error="E"),
    }
    (sent,) = publish(cut.store)
    publish(cut.store)
    (delivery,) = cut.store.reserve(cut.claim(cut.store, 1)).deliveries
    settle = Settle(items=[Settlement(delivery, wishes[how])])
    cut.next("settle")
    with pytest.raises(OutcomeUnknown):
        cut.store.settle(settle)
    assert cut.cutter.cuts == 1
    assert cut.store.settle(settle) == [False]
    (info,) = cut.store.get([sent.id])
    assert info is not None
    assert info.state is {"ack": TaskState.SUCCEEDED, "retry": TaskState.RETRYING, "dead": TaskState.FAILED}[how]
    assert (info.attempt, len(info.attempts)) == (1, 0 if how == "ack" else 1)
    stats = cut.direct.stats(["q"])[0]
    assert (stats.ready, stats.running, stats.dead) == (1, 0, int(how == "dead"))


@both_modes
@both_kinds
def test_tasks_whose_claim_was_lost_come_back_after_the_lease(cut: Cut) -> None:
    """Claimed, but nobody knows: after the lease they are there again, in order, and only the first is blamed."""
    sent = [m.id for m in publish(cut.store, 4)]
    cut.next("reserve")
    with pytest.raises(OutcomeUnknown):
        cut.store.reserve(cut.claim(cut.store, 3))
    assert cut.cutter.cuts == 1
    assert [d.id for d in cut.store.reserve(cut.claim(cut.store, 9)).deliveries] == sent[3:]
    cut.clock.advance(30)
    again = cut.store.reserve(cut.claim(cut.store, 9)).deliveries
    assert [delivery.id for delivery in again][:3] == sent[:3]
    assert [delivery.attempt for delivery in again][:3] == [2, 1, 1]


@both_modes
@both_kinds
def test_a_worker_lives_with_answers_that_get_lost(cut: Cut) -> None:
    """Whatever answers a worker loses, every task succeeds; who was acknowledged is not run again."""
    ran: Record[int] = Record()
    with App(cut.direct_url) as publisher, App(cut.url, lease=0.5) as app:

        @app.task(name="note", retry=Retry(max_attempts=5, base=0.0))
        def note(number: int) -> None:
            ran.add(number)

        ref = publisher.ref("note")
        ids: list[str] = []
        with app.worker(concurrency=2, pool="threads"):
            for number, verb in enumerate(("settle", "reserve", "settle", "settle", "reserve")):
                cut.next(verb)
                ids += [ref.enqueue(10 * number + i).id for i in range(10)]
                for task_id in ids:
                    assert publisher.store.watch(task_id, 20)
        infos = [publisher.get(task_id) for task_id in ids]
    assert {info.state for info in infos} == {TaskState.SUCCEEDED}
    assert cut.cutter.cuts >= 3
    times = Counter(ran.items)
    assert all(times[number] == 1 for number, info in enumerate(infos) if info.epoch == 1)


# ── restarts, and forgotten scripts ──


class Load:
    """Publishes one task after the other, and knows which were acknowledged."""

    def __init__(self, app: App) -> None:
        self.stored: dict[int, str] = {}
        self.next = 0
        self.refused: Record[int] = Record()
        self._ref = app.ref("note", retry=Retry(max_attempts=20, base=0.0))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        while not self._over.wait(0.002):
            self.next += 1
            try:
                self.stored[self.next] = self._ref.enqueue(self.next).id
            except TransportError:
                self.refused.add(self.next)

    def stop(self) -> dict[int, str]:
        self._over.set()
        self._thread.join(20)
        return self.stored


@contextlib.contextmanager
def under_load(url: str) -> Iterator[tuple[App, Load, Record[int]]]:
    """A worker of four threads at work; at the end all that was acknowledged has succeeded."""
    ran: Record[int] = Record()
    with App(url, lease=2.0) as app, App(url) as publisher:

        @app.task(name="note")
        def note(number: int) -> None:
            ran.add(number)

        with app.worker(concurrency=4, pool="threads"):
            load = Load(publisher)
            ran.wait(20)
            yield app, load, ran
            stored = load.stop()
            for task_id in stored.values():
                assert app.store.watch(task_id, 20), "an acknowledged task was lost"
            infos = {number: app.get(task_id) for number, task_id in stored.items()}
    assert {info.state for info in infos.values()} == {TaskState.SUCCEEDED}
    times = Counter(ran.items)
    assert all(times[number] == 1 for number, info in infos.items() if info.epoch == 1)


@both_modes
@both_kinds
def test_work_goes_on_soon_after_each_restart(kind: Kind, lua: str) -> None:
    """A server that dies under load, ten times in a row, has lost nothing; back, it runs new tasks within 5 s."""
    with (
        own_server("--appendonly", "yes", "--appendfsync", "always", kind=kind) as server,
        under_load(server.url(lua=lua)) as (_, load, ran),
    ):
        for number in range(RESTARTS):
            server.kill()
            if number % 2:
                load.refused.wait(len(load.refused.items) + 50)
            server.start()
            back, first = time.monotonic(), load.next + 1
            ran.wait_until(lambda items, first=first: items[-1] >= first, f"task {first}")  # type: ignore[misc]
            assert time.monotonic() - back < SOON
            ran.wait(len(ran.items) + 20)


@both_modes
@both_kinds
def test_scripts_may_be_flushed_under_load(kind: Kind, lua: str) -> None:
    """A server that forgets all scripts again and again, at any moment, stops nobody and loses nothing."""
    with own_server(kind=kind) as server, under_load(server.url(lua=lua)) as (_, _, ran):
        for _ in range(50):
            admin(server, "FUNCTION", "FLUSH")
            admin(server, "SCRIPT", "FLUSH")
            ran.wait(len(ran.items) + 2)
