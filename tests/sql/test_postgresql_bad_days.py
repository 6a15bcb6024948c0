"""What goes wrong with a PostgreSQL server: one clear error each, and nothing lost or doubled."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from taskmq.errors import ConfigError, OutcomeUnknown, TransportError, TransportUnavailable
from taskmq.testing.sql_servers import PostgresServer, postgres_server
from taskmq.transport.base import Publish, WorkerInfo
from taskmq.transport.registry import open_store
from taskmq.transport.sql.postgresql import checkup
from taskmq.transport.sql.postgresql.session import PgSession
from tests.sql.help import acknowledge, claim, message, publish, work_off


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that a test may restart."""
    server = PostgresServer("postgresql")
    yield server
    server.stop()


def role(server: PostgresServer, *grants: str) -> str:
    """A new user with these rights."""
    name = f"user_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {name} LOGIN")
    for grant in grants:
        server.execute(f"{grant} TO {name}")
    return name


# ── cannot be opened ──


def test_a_wrong_password_is_told(own: PostgresServer) -> None:
    """And the message does not repeat it."""
    own.execute("CREATE ROLE secret LOGIN PASSWORD 'right'")
    rules = Path(own.folder, "data", "pg_hba.conf")
    rules.write_text("local all secret scram-sha-256\n" + rules.read_text())
    own.execute("SELECT pg_reload_conf()")
    time.sleep(0.2)
    url = own.url(user="secret:wr0ng")
    with pytest.raises(ConfigError, match="check user, password") as caught:
        open_store(url)
    assert "wr0ng" not in str(caught.value)


def test_a_missing_database_is_told(server: PostgresServer) -> None:
    """With the way to get one."""
    with pytest.raises(ConfigError, match="createdb, then taskmq migrate up"):
        open_store(server.url(database="nowhere"))


def test_a_missing_user_is_told(server: PostgresServer) -> None:
    """By name."""
    with pytest.raises(ConfigError, match="nobody_here"):
        open_store(server.url(user="nobody_here"))


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As something that may come back."""
    with pytest.raises(TransportUnavailable, match="no connection"):
        open_store(f"postgresql://me@/db?host={tmp_path}")


@pytest.mark.parametrize("option", ["pool=0", "pool=many", "timeout=-1", "prepared=perhaps", "no_such_option=1"])
def test_a_wrong_option_is_told(option: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ConfigError):
        open_store(f"postgresql://me@localhost/db?{option}")


def test_a_missing_schema_is_told(server: PostgresServer) -> None:
    """With the command that makes it."""
    server.execute("CREATE SCHEMA IF NOT EXISTS nothing_here")
    with pytest.raises(ConfigError, match="taskmq migrate up"):
        open_store(server.url("nothing_here"))


@pytest.mark.parametrize(("version", "words"), [(1, "older: run taskmq migrate up"), (99, "newer taskmq")])
def test_another_schema_is_told(server: PostgresServer, version: int, words: str) -> None:
    """Older: migrate; newer: upgrade."""
    schema = server.place(uuid.uuid4().hex)
    before = server.execute(f"UPDATE {schema}.taskmq_schema SET version={version} RETURNING version")
    assert before
    try:
        with pytest.raises(ConfigError, match=words):
            open_store(server.url(schema))
    finally:
        server.execute(f"UPDATE {schema}.taskmq_schema SET version=2")


def test_missing_rights_are_told(server: PostgresServer) -> None:
    """Which table it is."""
    schema = server.place(uuid.uuid4().hex)
    user = role(
        server,
        f"GRANT USAGE ON SCHEMA {schema}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema}",
    )
    store = open_store(server.url(schema, user=user))
    with pytest.raises(TransportError, match="permission denied for table taskmq_tasks"):
        publish(store)
    store.close()


def test_a_replica_is_told(own: PostgresServer) -> None:
    """Reads work, and the first write says what is wrong."""
    url = own.url(own.place("x"))
    own.halt()
    Path(own.folder, "data", "standby.signal").touch()
    own.start()
    store = open_store(url)
    assert [finding.check for finding in store.checkup()] == ["replica"]
    assert store.stats() == []
    with pytest.raises(TransportError, match="replica"):
        publish(store)
    store.close()


def test_a_forced_isolation_level_changes_nothing(server: PostgresServer) -> None:
    """READ COMMITTED is set for each transaction."""
    schema = server.place(uuid.uuid4().hex)
    user = role(
        server,
        f"GRANT USAGE ON SCHEMA {schema}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema}",
    )
    server.execute(f"ALTER ROLE {user} SET default_transaction_isolation='serializable'")
    stores = [open_store(server.url(schema, user=user)) for _ in range(2)]
    publish(stores[0], 200)
    done = [threading.Thread(target=work_off, args=(store,)) for store in stores]
    for thread in done:
        thread.start()
    for thread in done:
        thread.join()
    assert stores[0].stats(["q"])[0].ready == 0
    for store in stores:
        store.close()


# ── goes away ──


def test_a_restart_is_survived(own: PostgresServer) -> None:
    """What was published is there, what is held can be settled, and the next verb simply works."""
    store = open_store(own.url(own.place("x")))
    publish(store, 20)
    held = claim(store, 5)
    own.restart()
    assert all(acknowledge(store, held))
    publish(store, 5)
    assert len(work_off(store)) == 20
    store.close()


def test_a_crash_is_survived(own: PostgresServer) -> None:
    """Nothing that was answered is lost."""
    store = open_store(own.url(own.place("x")))
    receipts = publish(store, 50)
    own.restart(crash=True)
    assert set(work_off(store)) == {receipt.id for receipt in receipts}
    store.close()


def test_a_server_that_is_down_is_an_outage(own: PostgresServer) -> None:
    """At once, as an error that may be over soon; and then it is."""
    store = open_store(own.url(own.place("x")))
    publish(store)
    own.halt()
    with pytest.raises(TransportUnavailable):
        publish(store)
    own.start()
    publish(store)
    assert len(work_off(store)) == 2
    store.close()


def test_sessions_that_are_ended_under_load_cost_nothing(server: PostgresServer) -> None:
    """Somebody terminates sessions while four threads publish and work: each task is done once, none is lost."""
    schema = server.place(uuid.uuid4().hex)
    store = open_store(server.url(schema))
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

    threads = [threading.Thread(target=role) for role in (producer, producer, worker, worker)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        time.sleep(0.1)
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE application_name='taskmq' "
            "AND pid<>pg_backend_pid() ORDER BY random() LIMIT 2) victims"
        )
    stop.set()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done))
    left = {info.id for info in store.get(published) if info is not None}
    assert left == set(published), "tasks that were published and are gone"
    assert len(done) > 10
    store.close()


def test_a_lost_answer_to_a_publish_is_asked_for_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """COMMIT has happened, its answer is lost: the task is there once, and its receipt is that of a new one."""
    store = open_store(url)
    lose_one_commit(monkeypatch)
    (receipt,) = publish(store)
    assert not receipt.duplicate
    assert work_off(store) == {receipt.id: 1}
    store.close()


def test_a_lost_answer_to_a_claim_is_unknown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows who has the tasks; their leases will end."""
    store = open_store(url)
    publish(store, 3)
    lose_one_commit(monkeypatch)
    with pytest.raises(OutcomeUnknown):
        claim(store, 2)
    assert len(claim(store, 3)) == 1
    store.close()


def lose_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next COMMIT happens, and its connection ends before the answer."""
    commit = PgSession.commit

    def cut(session: PgSession) -> None:
        monkeypatch.setattr(PgSession, "commit", commit)
        commit(session)
        session.committing = True
        session._connection.close()
        raise psycopg.OperationalError("the connection was cut")

    monkeypatch.setattr(PgSession, "commit", cut)


# ── meets others ──


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure])
def test_a_transaction_that_meets_others_is_run_again(
    url: str, monkeypatch: pytest.MonkeyPatch, error: type[psycopg.Error]
) -> None:
    """A few times, and then the error says that nothing was stored."""
    store = open_store(url)
    publish(store)
    commit, failures = PgSession.commit, [3]

    def fail(session: PgSession) -> None:
        if failures[0]:
            failures[0] -= 1
            raise error("met")
        commit(session)

    monkeypatch.setattr(PgSession, "commit", fail)
    publish(store)
    failures[0] = 1000
    with pytest.raises(TransportUnavailable, match="nothing was stored"):
        publish(store)
    failures[0] = 0
    assert len(work_off(store)) == 2
    store.close()


def test_a_real_deadlock_is_run_again(server: PostgresServer) -> None:
    """Another program locks our queues in the wrong order: one of the two is undone, and the publish is done."""
    schema = server.place(uuid.uuid4().hex)
    store = open_store(server.url(schema))
    publish(store, queue="a"), publish(store, queue="b")
    with psycopg.connect(server.dsn(), options=f"-csearch_path={schema}") as other:
        other.execute("SET deadlock_timeout='10s'")  # it is ours that finds out
        other.execute("SELECT 1 FROM taskmq_queues WHERE name='b' FOR UPDATE")
        batch = [message("a", "!1"), message("b", "!1")]
        thread = threading.Thread(target=store.publish, args=(Publish(messages=batch),))
        thread.start()
        time.sleep(0.3)
        other.execute("SELECT 1 FROM taskmq_queues WHERE name='a' FOR UPDATE")
        other.commit()
        thread.join(20)
    assert all(info is not None for info in store.get([task.id for task in batch]))
    store.close()


def test_heartbeats_go_on_when_all_connections_are_busy(server: PostgresServer) -> None:
    """Who finds none in time gets a clear error; what keeps leases alive has a connection of its own."""
    schema = server.place(uuid.uuid4().hex)
    store = open_store(server.url(schema, pool="1", timeout="0.3"))
    publish(store)
    with psycopg.connect(server.dsn(), options=f"-csearch_path={schema}") as other:
        other.execute("SELECT 1 FROM taskmq_queues FOR UPDATE")
        stuck = threading.Thread(target=claim, args=(store,))
        stuck.start()
        time.sleep(0.1)
        with pytest.raises(TransportUnavailable, match="pool="):
            publish(store, queue="other")
        info = WorkerInfo(id="w", host="h", pid=1, queues=["q"], pool="solo", concurrency=1, version="1", started_at=0)
        store.heartbeat(info, 60_000_000)
        assert [worker.id for worker in store.workers()] == ["w"]
    stuck.join()
    store.close()


def test_an_old_transaction_is_named(server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has left one open, and how to end it."""
    store = open_store(url)
    monkeypatch.setattr(checkup, "OLDEST", checkup.OLDEST.replace(f"secs => {checkup.OLD_TRANSACTION}", "secs => 0"))
    with psycopg.connect(server.dsn(), application_name="forgotten") as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1 FROM pg_class LIMIT 1")
        time.sleep(0.05)
        findings = [finding for finding in store.checkup() if finding.check == "snapshot"]
    assert len(findings) == 1
    assert "forgotten" in findings[0].text
    store.close()


def test_the_oldest_server_is_15() -> None:
    """The range that the docs promise."""
    ((version,),) = postgres_server("postgresql").execute("SHOW server_version_num")
    assert 150000 <= int(version) < 170000
