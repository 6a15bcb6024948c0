"""What goes wrong with MariaDB and no other server; the rest is in test_refusals.py and test_outages.py."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

from taskmq import App, Config
from taskmq.testing.mariadb_server import MariadbServer, mariadb_server
from taskmq.transport.base import Publish
from taskmq.transport.registry import open_store
from tests.sql.help import claim, message, publish, work_off

ODD = (
    "ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE,NO_BACKSLASH_ESCAPES,EMPTY_STRING_IS_NULL,PAD_CHAR_TO_FULL_LENGTH,"
    "NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT,NO_AUTO_VALUE_ON_ZERO,TIME_ROUND_FRACTIONAL"
)
WORDS = ["back\\slash", "quo'te", 'dou"ble', "per%cent", "pi||pe", "\\'; --"]


@pytest.fixture
def server() -> MariadbServer:
    return mariadb_server()


@pytest.fixture(params=[ODD, "ORACLE", "MSSQL", ""], ids=["odd", "oracle", "mssql", "none"])
def odd(request: pytest.FixtureRequest, server: MariadbServer) -> Iterator[str]:
    """A database on a server that has given everybody who does not set one this sql_mode."""
    database = server.place(uuid.uuid4().hex)
    ((before,),) = server.execute("SELECT @@GLOBAL.sql_mode")
    server.execute(f"SET GLOBAL sql_mode='{request.param}'")
    yield database
    server.execute(f"SET GLOBAL sql_mode='{before}'")


def test_an_odd_sql_mode_changes_nothing(server: MariadbServer, odd: str) -> None:
    """Quotes, backslashes and empty strings mean what they mean to us."""
    store = open_store(server.url(odd))
    store.publish(Publish(messages=[message(partition=word, key=word) for word in WORDS]))
    assert [info.code for info in store.partitions("q")] == sorted(WORDS, key=str.encode)
    assert {delivery.partition for delivery in claim(store, 10)} == set(WORDS)
    publish(store, 3)
    assert len(work_off(store)) == 3
    store.close()


def test_an_odd_sql_mode_of_a_users_transaction_is_put_aside(server: MariadbServer, odd: str) -> None:
    """And is there again afterwards, also when the publish was refused."""
    words = {"unix_socket": server.socket, "user": "root", "database": odd, "charset": "utf8mb4"}
    with closing(App(Config(url=server.url(odd)))) as app, closing(pymysql.connect(**words)) as connection:
        send = app.ref("h", queue="q")
        for word in WORDS:
            send.using(connection=connection, partition=word, key=word).enqueue()
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.sql_mode = @@GLOBAL.sql_mode")
            assert cursor.fetchone() == (1,)
        connection.commit()
        assert {delivery.partition for delivery in claim(app.store, 10)} == set(WORDS)


def test_the_server_that_was_tested_is_10_11(server: MariadbServer) -> None:
    """The version that the docs name."""
    ((version,),) = server.execute("SELECT version()")
    assert version.startswith("10.11.") or tuple(map(int, version.split(".")[:2])) > (10, 11)
