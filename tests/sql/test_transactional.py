"""A publish in the user's own transaction: the task exists if and only if it commits."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor
from sqlalchemy.orm import Session as OrmSession

from taskmq import App, Config
from taskmq.errors import IdempotencyConflict, InvalidArgument
from taskmq.task import Ref
from taskmq.testing.mariadb_server import MariadbServer, mariadb_server
from taskmq.testing.mysqldb import need_mysqldb
from taskmq.testing.sql_servers import PostgresServer, postgres_server
from taskmq.transport.base import Maintain, Wait
from tests.sql.help import claim, work_off

Open = Callable[[], Any]


class Place:
    """A store's URL, and ways to its database that users have."""

    def __init__(self, url: str, ways: dict[str, Open]) -> None:
        self.app = App(Config(url=url))
        self.ways = ways
        self.send: Ref = self.app.ref("h", queue="q")
        self.send.enqueue()
        work_off(self.app.store)


def _dict_rows(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def sqlite(folder: Path) -> Place:
    file = folder / "q.db"

    def dictionaries() -> sqlite3.Connection:
        connection = sqlite3.connect(file)
        connection.row_factory = _dict_rows
        return connection

    engine = sqlalchemy.create_engine(f"sqlite:///{file}", poolclass=sqlalchemy.NullPool)
    return Place(
        f"sqlite:///{file}?synchronous=off",
        {
            "driver": lambda: sqlite3.connect(file),
            "driver with dictionaries": dictionaries,
            "sqlalchemy": engine.connect,
            "sqlalchemy session": lambda: OrmSession(engine),
        },
    )


def postgresql(server: PostgresServer) -> Place:
    schema = server.place(uuid.uuid4().hex)
    url = server.url(schema)
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(server.dsn(), options=f"-csearch_path={schema}"),
        poolclass=sqlalchemy.NullPool,
    )
    return Place(
        url,
        {
            "driver": lambda: psycopg.connect(server.dsn(), options=f"-csearch_path={schema}"),
            "driver with dictionaries": lambda: psycopg.connect(server.dsn(), row_factory=dict_row),
            "sqlalchemy": engine.connect,
            "sqlalchemy session": lambda: OrmSession(engine),
        },
    )


def mariadb(server: MariadbServer) -> Place:
    database = server.place(uuid.uuid4().hex)
    words = {"unix_socket": server.socket, "user": "root", "database": database, "charset": "utf8mb4"}
    engine = sqlalchemy.create_engine(
        "mysql+pymysql://", creator=lambda: pymysql.connect(**words), poolclass=sqlalchemy.NullPool
    )
    return Place(
        server.url(database),
        {
            "driver": lambda: pymysql.connect(**words),
            "driver with dictionaries": lambda: pymysql.connect(**words, cursorclass=DictCursor),
            "sqlalchemy": engine.connect,
            "sqlalchemy session": lambda: OrmSession(engine),
        },
    )


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        place = sqlite(tmp_path)
    elif request.param == "mariadb":
        place = mariadb(mariadb_server())
    else:
        place = postgresql(postgres_server("postgresql"))
    yield place
    place.app.close()


@contextmanager
def opened(place: Place, way: str) -> Iterator[Any]:
    with closing(place.ways[way]()) as connection:
        yield connection


def test_over_mysqlclient() -> None:
    """The URL names the driver, and a connection of that driver is taken, its own or SQLAlchemy's."""
    need_mysqldb()
    import MySQLdb

    server = mariadb_server()
    database = server.place(uuid.uuid4().hex)
    words = {"unix_socket": server.socket, "user": "root", "database": database, "charset": "utf8mb4"}
    engine = sqlalchemy.create_engine(
        "mysql+mysqldb://", creator=lambda: MySQLdb.connect(**words), poolclass=sqlalchemy.NullPool
    )
    ways: dict[str, Open] = {"driver": lambda: MySQLdb.connect(**words), "sqlalchemy": engine.connect}
    place = Place(server.url(database, scheme="mysql+mysqldb"), ways)
    for way in ways:
        with opened(place, way) as connection:
            place.send.using(connection=connection, partition="!p").enqueue()
            connection.rollback()
            handle = place.send.using(connection=connection, key=way).enqueue()
            connection.commit()
        assert list(work_off(place.app.store)) == [handle.id]
    with closing(pymysql.connect(**words)) as other, pytest.raises(InvalidArgument, match="MySQLdb"):
        place.send.using(connection=other).enqueue()
    with (
        closing(MySQLdb.connect(**words, autocommit=True)) as other,
        pytest.raises(InvalidArgument, match="autocommit"),
    ):
        place.send.using(connection=other).enqueue()
    place.app.close()


WAYS = ["driver", "driver with dictionaries", "sqlalchemy", "sqlalchemy session"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"partition": "!p"}, {"key": "k"}, {"delay": 60}], ids=str)
def test_it_exists_when_the_transaction_commits(place: Place, way: str, options: dict[str, Any]) -> None:
    """Not before."""
    with opened(place, way) as connection:
        handle = place.send.using(connection=connection, **options).enqueue()
        assert place.app.store.get([handle.id]) == [None]
        connection.commit()
    (info,) = place.app.store.get([handle.id])
    assert info is not None
    stats = place.app.store.stats(["q"])[0]
    assert stats.ready + stats.scheduled == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"partition": "!p"}, {"key": "k"}], ids=str)
def test_it_never_was_when_the_transaction_is_undone(place: Place, way: str, options: dict[str, Any]) -> None:
    """Nothing is left of it: no count, no key, no partition."""
    with opened(place, way) as connection:
        handle = place.send.using(connection=connection, **options).enqueue()
        connection.rollback()
    assert place.app.store.get([handle.id]) == [None]
    assert place.app.store.stats(["q"])[0].ready == 0
    assert place.app.store.partitions("q") == []
    assert claim(place.app.store) == []
    assert not place.send.using(**options).enqueue().duplicate


@pytest.mark.parametrize("way", WAYS)
def test_what_is_refused_leaves_the_transaction_as_it_was(place: Place, way: str) -> None:
    """The user's own rows are still there to be committed."""
    place.send.using(key="k").enqueue()
    work_off(place.app.store)
    with opened(place, way) as connection:
        first = place.send.using(connection=connection).enqueue()
        with pytest.raises(IdempotencyConflict):
            place.send.using(key="k", priority=9, connection=connection).enqueue()
        connection.commit()
    assert [delivery.id for delivery in claim(place.app.store)] == [first.id]


def test_several_in_one_transaction(place: Place) -> None:
    """A batch, and another one."""
    with opened(place, "driver") as connection:
        place.app.enqueue_many([place.send.message() for _ in range(30)], connection=connection)
        place.app.enqueue_many([place.send.using(partition="p").message() for _ in range(5)], connection=connection)
        connection.commit()
    assert len(work_off(place.app.store)) == 35


def test_a_waiting_worker_is_woken_by_the_commit(place: Place) -> None:
    """Not by the publish, which it could not see."""
    store = place.app.store
    store.wait(Wait(queues=["q"], timeout=0.3))
    woken: list[float] = []

    def waiting() -> None:
        if store.wait(Wait(queues=["q"], timeout=10)):
            woken.append(time.monotonic())

    with opened(place, "driver") as connection:
        place.send.using(connection=connection).enqueue()
        thread = threading.Thread(target=waiting)
        thread.start()
        time.sleep(0.3)
        committed = time.monotonic()
        connection.commit()
        thread.join()
    assert woken
    assert 0 <= woken[0] - committed < 0.8


@pytest.mark.parametrize("place", ["postgresql", "mariadb"], indirect=True)  # a file has one writer
def test_an_open_transaction_stops_nobody(place: Place) -> None:
    """While a user thinks, others publish and work; its task comes when it commits."""
    with opened(place, "driver") as connection:
        mine = place.send.using(connection=connection).enqueue()
        others = {place.send.enqueue().id for _ in range(40)}
        assert set(work_off(place.app.store)) == others
        connection.commit()
    assert list(work_off(place.app.store)) == [mine.id]
    place.app.store.maintain(Maintain())
    assert place.app.store.stats(["q"])[0].ready == 0


def test_what_is_no_transaction_is_refused(place: Place, tmp_path: Path) -> None:
    """Autocommit, another database, something else."""
    with pytest.raises(InvalidArgument, match="connection is a"):
        place.send.using(connection=object()).enqueue()
    with closing(place.ways["driver"]()) as connection:
        if place.app.store.name == "sqlite":
            connection.isolation_level = None
        elif place.app.store.name == "mysql":
            connection.autocommit(True)
        else:
            connection.autocommit = True
        with pytest.raises(InvalidArgument, match="autocommit"):
            place.send.using(connection=connection).enqueue()
    if place.app.store.name == "sqlite":
        with (
            closing(sqlite3.connect(tmp_path / "other.db")) as other,
            pytest.raises(InvalidArgument, match=r"other\.db"),
        ):
            place.send.using(connection=other).enqueue()


def test_other_stores_say_that_they_cannot() -> None:
    """Memory has no transactions of users."""
    with closing(App(Config(url="memory://"))) as app, pytest.raises(InvalidArgument, match="SQL database"):
        app.ref("h").using(connection=object()).enqueue()
