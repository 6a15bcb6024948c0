"""A database that cannot be opened or used: one clear error each, with the way out, and never with the password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from taskmq.errors import ConfigError, TransportError, TransportUnavailable
from taskmq.queue import Partition
from taskmq.transport.base import Publish
from taskmq.transport.registry import open_schema, open_store
from tests.sql.help import message, publish, work_off, work_off_by_all
from tests.sql.sides import Mariadb, Postgres, Side, own, shared


@pytest.fixture(params=["postgresql", "postgresql-new", "mariadb"])
def side(request: pytest.FixtureRequest) -> Side:
    return shared(request.param)


def test_a_wrong_password_is_told(side: Side) -> None:
    """And the message does not repeat it; the right one opens the store."""
    place, user = side.place(), side.secret()
    with pytest.raises(ConfigError, match="check user, password") as caught:
        open_store(side.url(place, user=f"{user}:wr0ng"))
    assert "wr0ng" not in str(caught.value)


def test_a_missing_database_is_told(side: Side) -> None:
    """With the way to get one."""
    with pytest.raises(ConfigError, match=r"nowhere.*create.*then taskmq migrate up"):
        open_store(side.url("nowhere", database="nowhere"))


def test_a_missing_user_is_told(side: Side) -> None:
    """By name."""
    with pytest.raises(ConfigError, match="nobody_here"):
        open_store(side.url(side.place(), user="nobody_here"))


@pytest.mark.parametrize("url", ["postgresql://me@/db?host={0}", "mysql://me@host/db?unix_socket={0}/my.sock"])
def test_a_server_that_is_not_there_is_told(url: str, tmp_path: Path) -> None:
    """As something that may come back."""
    with pytest.raises(TransportUnavailable, match="no connection"):
        open_store(url.format(tmp_path))


@pytest.mark.parametrize("option", ["pool=0", "pool=many", "timeout=-1", "no_such_option=1"])
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
def test_a_wrong_option_is_told(scheme: str, option: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ConfigError):
        open_store(f"{scheme}://me@localhost/db?{option}")


def test_a_url_that_makes_no_sense_is_told() -> None:
    """What only one of them can get wrong."""
    with pytest.raises(ConfigError, match="on or off"):
        open_store("postgresql://me@localhost/db?prepared=perhaps")
    with pytest.raises(ConfigError, match="names no database"):
        open_store("mysql://me@host")


def test_a_missing_schema_is_told(side: Side) -> None:
    """With the command that makes it."""
    with pytest.raises(ConfigError, match="run taskmq migrate up"):
        open_store(side.url(side.bare()))


@pytest.mark.parametrize(("version", "words"), [(1, "older: run taskmq migrate up"), (99, "newer taskmq")])
def test_another_schema_is_told(side: Side, version: int, words: str) -> None:
    """Older: migrate; newer: upgrade, and a migration does not touch it."""
    place = side.place()
    ((right,),) = side.execute("SELECT version FROM taskmq_schema", place)
    side.execute(f"UPDATE taskmq_schema SET version={version}", place)
    try:
        with pytest.raises(ConfigError, match=words):
            open_store(side.url(place))
        with pytest.raises(ConfigError, match="newer taskmq" if version == 99 else "no way from schema 1"):
            open_schema(side.url(place)).up()
    finally:
        side.execute(f"UPDATE taskmq_schema SET version={right}", place)


def test_missing_rights_are_told(side: Side) -> None:
    """Which table it is, and which right: in the error where the server says it, else by the doctor."""
    place = side.place()
    store = open_store(side.url(place, user=side.reader(place)))
    with pytest.raises(TransportError, match=r"(INSERT|UPDATE|permission denied).*taskmq_") as caught:
        publish(store)
    if isinstance(side, Postgres):
        assert "taskmq doctor" in str(caught.value)
        tables, sequences = (finding for finding in store.checkup() if finding.check == "rights")
        assert "GRANT DELETE, INSERT, UPDATE ON ALL TABLES" in tables.fix
        assert "GRANT USAGE ON ALL SEQUENCES" in sequences.fix
    store.close()


def test_the_rights_of_the_docs_are_enough(side: Side) -> None:
    """A worker's user needs no more than upgrade.md says, and the doctor misses none."""
    place = side.place()
    store = open_store(side.url(place, user=side.writer(place)))
    store.publish(Publish(messages=[message(key="k"), message("q", "!p")]))
    assert len(work_off(store)) == 2
    assert [finding for finding in store.checkup() if finding.check == "rights"] == []
    store.close()


@contextmanager
def _replica(side: Side, place: str) -> Iterator[str]:
    """The server takes no writes; the URL of its store."""
    if isinstance(side, Mariadb):
        user = side.writer(place)
        side.execute("SET GLOBAL read_only=1")
        yield side.url(place, user=user)
        side.execute("SET GLOBAL read_only=0")
    else:
        assert isinstance(side, Postgres)
        side.halt()
        signal = Path(side.server.folder, "data", "standby.signal")
        signal.touch()
        side.start()
        yield side.url(place)
        signal.unlink()
        side.restart(crash=False)


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_replica_is_told(name: str) -> None:
    """By the doctor; reads work, and the first write says what is wrong."""
    side = own(name)
    with _replica(side, side.place()) as url:
        store = open_store(url)
        assert "replica" in [finding.check for finding in store.checkup()]
        assert store.stats() == []
        with pytest.raises(TransportError, match="replica"):
            publish(store)
        store.close()


@contextmanager
def _forced(side: Side, place: str, level: str) -> Iterator[str]:
    """Somebody has set another isolation level for all; the URL of a store."""
    if isinstance(side, Mariadb):
        side.execute(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}")
        yield side.url(place)
        side.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        user = side.writer(place)
        side.execute(f"ALTER ROLE {user} SET default_transaction_isolation='{level.lower()}'")
        yield side.url(place, user=user)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_forced_isolation_level_changes_nothing(side: Side, level: str) -> None:
    """READ COMMITTED is set by ourselves: two workers get each task once, and wait for nothing again and again."""
    place = side.place()
    with _forced(side, place, level) as url:
        stores = [open_store(url) for _ in range(2)]
        publish(stores[0], 100)
        done = work_off_by_all(stores)
        assert len(done) == len(set(done)) == 100
        for store in stores:
            store.close()


def test_names_are_compared_as_bytes(side: Side) -> None:
    """A, a and a with a blank are three keys, three queues and three partitions, whatever the server's collation is."""
    store = open_store(side.url(side.place()))
    words = ["A", "a", "a ", "ä", "a\u0308", "\\", "'\"%s`"]
    receipts = store.publish(Publish(messages=[message(key=word) for word in words]))
    assert [receipt.duplicate for receipt in receipts] == [False] * len(words)
    again = store.publish(Publish(messages=[message(key=word) for word in words]))
    assert [receipt.id for receipt in again] == [receipt.id for receipt in receipts]
    partitioned = [replace(message("parts"), partition=Partition(word)) for word in words]
    store.publish(Publish(messages=partitioned))
    assert [info.code for info in store.partitions("parts")] == sorted(words, key=str.encode)
    publish(store, queue="Q")
    assert sorted(stats.name for stats in store.stats()) == ["Q", "parts", "q"]
    store.close()
