"""PostgreSQL's transactions side by side: what a publish without the lock must not break, and how news travels."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from taskmq.testing.sql_servers import PostgresServer
from taskmq.transport.base import Publish, Store, Wait
from taskmq.transport.registry import open_store
from taskmq.transport.sql.postgresql.listener import channel
from taskmq.transport.sql.postgresql.session import PgSession
from tests.sql.help import acknowledge, claim, message, publish, work_off

PATIENCE = 10.0


@pytest.fixture
def two(server: PostgresServer) -> Iterator[tuple[Store, Store]]:
    """Two processes' stores in one place."""
    url = server.url(server.place(uuid.uuid4().hex))
    stores = open_store(url), open_store(url)
    yield stores
    for store in stores:
        store.close()


class Held:
    """A publish that has looked at its queue and stored its task, and is held before its commit until ``let_go``."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go, self._stored = threading.Event(), threading.Event()
        commit = PgSession.commit

        def held(session: PgSession) -> None:
            monkeypatch.setattr(PgSession, "commit", commit)
            session.send()
            self._stored.set()
            assert self._go.wait(PATIENCE)
            commit(session)

        monkeypatch.setattr(PgSession, "commit", held)
        self.message = message("q")
        self._thread = threading.Thread(target=store.publish, args=(Publish(messages=[self.message]),))
        self._thread.start()
        assert self._stored.wait(PATIENCE)

    def let_go(self) -> None:
        self._go.set()
        self._thread.join(PATIENCE)


def test_a_plain_publish_waits_for_nobody(server: PostgresServer, two: tuple[Store, Store]) -> None:
    """While somebody holds the queue's lock, plain tasks are published; they are counted and claimed as all others."""
    one, other = two
    publish(one)
    with psycopg.connect(server.dsn()) as blocker:
        for (name,) in server.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename='taskmq_queues'"):
            blocker.execute(f"SELECT 1 FROM {name}.taskmq_queues FOR UPDATE")
        began = time.monotonic()
        publish(one, 5)
        publish(other, 5)
        assert time.monotonic() - began < 5
        assert one.stats(["q"])[0].ready == 11
    assert len(work_off(two[0])) == 11
    assert one.stats(["q"])[0].ready == 0


def test_a_task_behind_the_last_one_is_found(two: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """The unpartitioned flow runs empty between a publish's look and its commit: the next claim finds the task."""
    one, other = two
    one.publish(Publish(messages=[message("q", "!p"), message("q", "!p")]))
    publish(one)
    held = Held(other, monkeypatch)
    assert len(claim(one, 10)) == 3
    held.let_go()
    assert [delivery.id for delivery in claim(one, 10)] == [held.message.id]


def test_a_task_beside_the_first_partition_is_found(two: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first partition is born between a publish's look and its commit: both are claimed."""
    one, other = two
    publish(one)
    acknowledge(one, claim(one))
    held = Held(other, monkeypatch)
    partitioned = message("q", "!p")
    one.publish(Publish(messages=[partitioned]))
    held.let_go()
    assert {delivery.id for delivery in claim(one, 10)} == {held.message.id, partitioned.id}


def test_a_queue_is_not_deleted_under_a_publish(two: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who deletes a queue waits for publishes that have begun, and then finds their tasks."""
    one, other = two
    publish(one)
    acknowledge(one, claim(one))
    held = Held(one, monkeypatch)
    answers: list[bool] = []
    deleting = threading.Thread(target=lambda: answers.append(other.delete_queue("q")))
    deleting.start()
    deleting.join(0.3)
    assert deleting.is_alive()
    held.let_go()
    deleting.join(PATIENCE)
    assert answers == [False]
    assert len(work_off(one)) == 1


def test_a_task_is_sent_twice_at_a_time(two: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish that is sent again while the first one is still under way stores nothing more."""
    one, other = two
    publish(one)
    held = Held(one, monkeypatch)
    again = threading.Thread(target=other.publish, args=(Publish(messages=[held.message]),))
    again.start()
    held.let_go()
    again.join(PATIENCE)
    assert len(work_off(one)) == 2


def test_another_process_is_woken(two: tuple[Store, Store]) -> None:
    """A publish ends the wait of another process's store in much less than the second after which it would look."""
    one, other = two
    publish(one)
    work_off(one)
    other.wait(Wait(queues=["q"], timeout=0.5))  # it listens now
    late = []
    for _ in range(5):
        answer: list[float] = []

        def waiting(answer: list[float] = answer) -> None:
            if other.wait(Wait(queues=["q"], timeout=5)):
                answer.append(time.monotonic())

        thread = threading.Thread(target=waiting)
        thread.start()
        time.sleep(0.15)
        began = time.monotonic()
        publish(one)
        thread.join()
        late.append(answer[0] - began)
        work_off(one)
    assert min(late) < 0.1, late
    assert sorted(late)[2] < 0.5, late


def test_notices_are_few(server: PostgresServer, two: tuple[Store, Store]) -> None:
    """A process says it at once, and then at most every 25 ms; and the last publish is not kept from anybody."""
    one, _ = two
    publish(one)
    time.sleep(0.1)
    with psycopg.connect(server.dsn(), autocommit=True) as listener:
        listener.execute(f"LISTEN {channel(schema_of(one), 'default')}")
        began = time.monotonic()
        for _ in range(30):
            publish(one)
        seconds = time.monotonic() - began
        heard = list(listener.notifies(timeout=0.5))
    assert 1 <= len(heard) <= 3 + seconds / 0.025
    assert {notice.payload.partition(" ")[2] for notice in heard} == {"q"}


def schema_of(store: Store) -> str:
    engine = store._engine  # type: ignore[attr-defined]
    return str(engine._schema)


def test_an_idle_listener_survives_its_server(two: tuple[Store, Store], server: PostgresServer) -> None:
    """When its session is ended it listens again."""
    one, other = two
    other.wait(Wait(queues=["q"], timeout=0.3))
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name='taskmq' AND query LIKE 'LISTEN%'"
    )
    time.sleep(0.5)
    publish(one)
    assert other.wait(Wait(queues=["q"], timeout=5))
