"""What goes wrong with a MariaDB server: one clear error each, and nothing lost or doubled."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pymysql
import pytest
from msgspec.structs import replace

from taskmq.errors import ConfigError, OutcomeUnknown, TransportError, TransportUnavailable
from taskmq.queue import Partition
from taskmq.testing.mariadb_server import MariadbServer, mariadb_server
from taskmq.transport.base import Publish, Store
from taskmq.transport.registry import open_schema, open_store
from taskmq.transport.sql.mysql.session import MysqlSession
from tests.sql.help import acknowledge, claim, message, publish, work_off


@pytest.fixture
def server() -> MariadbServer:
    return mariadb_server()


@pytest.fixture
def database(server: MariadbServer) -> str:
    return server.place(uuid.uuid4().hex)


@pytest.fixture
def own() -> Iterator[MariadbServer]:
    """A server that a test may restart."""
    server = MariadbServer()
    yield server
    server.stop()


def test_what_cannot_be_opened_is_told(server: MariadbServer) -> None:
    """A wrong password, a missing database, a missing schema; never with the password."""
    server.execute("CREATE OR REPLACE USER secret@localhost IDENTIFIED BY 'right'")
    with pytest.raises(ConfigError, match="check user, password") as caught:
        open_store(server.url("place0", user="secret:wr0ng"))
    assert "wr0ng" not in str(caught.value)
    with pytest.raises(ConfigError, match="CREATE DATABASE"):
        open_store(server.url("nowhere"))
    server.execute("CREATE DATABASE IF NOT EXISTS bare")
    with pytest.raises(ConfigError, match="taskmq migrate up"):
        open_store(server.url("bare"))


@pytest.mark.parametrize("url", ["mysql://me@host", "mysql://me@host/db?pool=0", "mysql://me@host/db?what=1"])
def test_a_wrong_url_is_told(url: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ConfigError):
        open_store(url)


def test_the_schema_comes_and_goes(server: MariadbServer) -> None:
    """up, status, down; the second up does nothing."""
    server.execute("CREATE DATABASE IF NOT EXISTS migrated")
    schema = open_schema(server.url("migrated"))
    assert schema.up() == ["create schema 2"]
    assert schema.up() == []
    store = open_store(server.url("migrated"))
    publish(store)
    store.close()
    with pytest.raises(TransportError, match="1 unfinished"):
        schema.down()
    assert schema.down(force=True) == "the schema is removed"
    assert schema.status().found is None


def test_missing_rights_are_told(server: MariadbServer, database: str) -> None:
    """Which table it is."""
    server.execute("CREATE OR REPLACE USER reader@localhost")
    server.execute(f"GRANT SELECT ON {database}.* TO reader@localhost")
    store = open_store(server.url(database, user="reader"))
    with pytest.raises(TransportError, match="taskmq_"):
        publish(store)
    store.close()


def test_names_are_compared_as_bytes(server: MariadbServer, database: str) -> None:
    """A, a and a with a blank are three keys, three queues and three partitions, whatever the server's collation is."""
    store = open_store(server.url(database))
    words = ["A", "a", "a ", "ä"]
    receipts = store.publish(Publish(messages=[message(key=word) for word in words]))
    assert [receipt.duplicate for receipt in receipts] == [False] * 4
    partitioned = [replace(message("parts"), partition=Partition(word)) for word in words]
    store.publish(Publish(messages=partitioned))
    assert [info.code for info in store.partitions("parts")] == sorted(words, key=str.encode)
    publish(store, queue="Q")
    assert sorted(stats.name for stats in store.stats()) == ["Q", "parts", "q"]
    store.close()


def test_a_restart_is_survived(own: MariadbServer) -> None:
    """What was published is there, what is held can be settled, and the next verb simply works."""
    store = open_store(own.url(own.place("x")))
    publish(store, 20)
    held = claim(store, 5)
    own.restart(crash=True)
    assert all(acknowledge(store, held))
    own.halt()
    with pytest.raises(TransportUnavailable):
        publish(store)
    own.start()
    publish(store, 5)
    assert len(work_off(store)) == 20
    store.close()


def test_sessions_that_are_killed_under_load_cost_nothing(server: MariadbServer, database: str) -> None:
    """Somebody kills sessions while threads publish and work: each task is done once, none is lost."""
    store = open_store(server.url(database))
    stop = threading.Event()
    published: list[str] = []
    done: list[str] = []

    def producer() -> None:
        while not stop.is_set():
            batch = [message() for _ in range(3)]
            try:
                store.publish(Publish(messages=batch))
            except TransportError:
                continue
            published.extend(task.id for task in batch)

    def worker() -> None:
        while not stop.is_set():
            try:
                held = claim(store, 5)
                results = acknowledge(store, held)
            except TransportError:
                continue
            done.extend(delivery.id for delivery, accepted in zip(held, results, strict=True) if accepted)

    threads = [threading.Thread(target=role) for role in (producer, worker, worker)]
    for thread in threads:
        thread.start()
    sessions = "SELECT id FROM information_schema.processlist"
    for _ in range(15):
        time.sleep(0.1)
        rows = server.execute(f"{sessions} WHERE db='{database}' ORDER BY RAND() LIMIT 2")
        for (connection,) in rows:
            try:
                server.execute(f"KILL {connection}")
            except pymysql.Error:
                continue  # it has ended by itself
    stop.set()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done))
    assert {info.id for info in store.get(published) if info is not None} == set(published)
    assert len(done) > 10
    store.close()


def lose_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next COMMIT happens, and its connection ends before the answer."""
    commit = MysqlSession.commit

    def cut(session: MysqlSession) -> None:
        monkeypatch.setattr(MysqlSession, "commit", commit)
        commit(session)
        session.committing = True
        raise pymysql.OperationalError(2013, "Lost connection to MySQL server during query")

    monkeypatch.setattr(MysqlSession, "commit", cut)


def test_a_lost_answer(server: MariadbServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish is asked for again and is there once; of a claim nobody knows."""
    store: Store = open_store(server.url(database))
    lose_one_commit(monkeypatch)
    (receipt,) = publish(store)
    assert not receipt.duplicate
    publish(store, 2)
    lose_one_commit(monkeypatch)
    with pytest.raises(OutcomeUnknown):
        claim(store, 2)
    assert len(claim(store, 3)) == 1
    store.close()


def test_a_deadlock_is_run_again(server: MariadbServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few times, and then the error says that nothing was stored."""
    store = open_store(server.url(database))
    publish(store)
    commit, failures = MysqlSession.commit, [3]

    def fail(session: MysqlSession) -> None:
        if failures[0]:
            failures[0] -= 1
            raise pymysql.OperationalError(1213, "Deadlock found when trying to get lock")
        commit(session)

    monkeypatch.setattr(MysqlSession, "commit", fail)
    publish(store)
    failures[0] = 1000
    with pytest.raises(TransportUnavailable, match="nothing was stored"):
        publish(store)
    failures[0] = 0
    assert len(work_off(store)) == 2
    store.close()
