"""A real pgbouncer in transaction mode between us and PostgreSQL; the conformance suite runs over it, too."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from taskmq import App, Config
from taskmq.errors import ConfigError
from taskmq.testing.pgbouncer import POOL, Pgbouncer, pgbouncer
from taskmq.transport.base import Wait
from taskmq.transport.registry import open_schema, open_store
from tests.sql.help import publish, work_off, work_off_by_all


@pytest.fixture
def pooler() -> Pgbouncer:
    return pgbouncer()


@pytest.fixture
def place(pooler: Pgbouncer) -> str:
    return pooler.server.place(uuid.uuid4().hex)


@pytest.fixture
def deaf() -> Iterator[Pgbouncer]:
    """One that passes over what a client asks for when it connects."""
    pooler = Pgbouncer(pgbouncer().server, deaf=True)
    yield pooler
    pooler.stop()


def test_more_stores_than_sessions_work_side_by_side(pooler: Pgbouncer, place: str) -> None:
    """Each task is done once, and the server never sees more sessions than the pooler has."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name='taskmq'"
    ((others,),) = pooler.server.execute(count)
    stores = [open_store(pooler.url(place, prepared="off")) for _ in range(POOL)]
    publish(stores[0], 300)
    done = work_off_by_all(stores)
    assert len(done) == len(set(done)) == 300
    ((sessions,),) = pooler.server.execute(count)
    for store in stores:
        store.close()
    assert 1 <= sessions - others <= POOL


def test_nothing_is_left_on_a_session(pooler: Pgbouncer, place: str) -> None:
    """No settings and no prepared statements: the session's next user is somebody else."""
    with closing(open_store(pooler.url(place, prepared="off"))) as store:
        publish(store, 20)
        work_off(store)
    conninfo = f"host={pooler.folder} port=6432 user=postgres dbname={place}"
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as other:
        for _ in range(2 * POOL):
            row = other.execute(
                "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout'), "
                "(SELECT count(*) FROM pg_prepared_statements)"
            ).fetchone()
            assert row == ("on", "0", 0)


def test_a_waiting_worker_looks_by_itself(pooler: Pgbouncer, place: str) -> None:
    """Nobody can tell it, so it looks every 50 ms."""
    url = pooler.url(place, prepared="off")
    with closing(open_store(url)) as one, closing(open_store(url)) as other:
        publish(one)
        work_off(one)
        woken: list[float] = []

        def waiting() -> None:
            if other.wait(Wait(queues=["q"], timeout=10)):
                woken.append(time.monotonic())

        thread = threading.Thread(target=waiting)
        thread.start()
        began = time.monotonic()
        publish(one)
        thread.join()
        assert woken[0] - began < 2


def test_a_publish_in_a_users_transaction_goes_through_it(pooler: Pgbouncer, place: str) -> None:
    """It exists if and only if that commits."""
    conninfo = f"host={pooler.folder} port=6432 user=postgres dbname={place}"
    with (
        closing(App(Config(url=pooler.url(place, prepared="off")))) as app,
        psycopg.connect(conninfo, prepare_threshold=None) as connection,
    ):
        send = app.ref("h", queue="q")
        send.using(connection=connection).enqueue()
        connection.rollback()
        handle = send.using(connection=connection, partition="!p").enqueue()
        connection.commit()
        assert list(work_off(app.store)) == [handle.id]


def test_a_url_that_does_not_know_of_it_is_told(pooler: Pgbouncer, place: str, deaf: Pgbouncer) -> None:
    """By the refusal of what a session is set up with; where the pooler passes over that, by the doctor."""
    with pytest.raises(ConfigError, match=r"\?prepared=off"):
        open_store(pooler.url(place))
    with closing(open_store(deaf.url(place, listen="off"))) as store:
        assert [finding.check for finding in store.checkup()] == ["pooler"]
    with closing(open_store(deaf.url(place, prepared="off"))) as store:
        assert store.checkup() == []


def test_a_migration_wants_the_server_itself(pooler: Pgbouncer, place: str) -> None:
    """It keeps a lock on its session, which a pooler would leave to others."""
    with pytest.raises(ConfigError, match="is a pooler"):
        open_schema(pooler.url(place, prepared="off")).up()
