"""What the tests of bad days do to a database server, one way for each of the two."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pymysql
import pytest

from taskmq.testing.mariadb_server import MariadbServer, mariadb_server
from taskmq.testing.sql_servers import Kind, PostgresServer, postgres_server
from taskmq.transport.sql.mysql import checkup as mysql_checkup
from taskmq.transport.sql.mysql.session import MysqlSession
from taskmq.transport.sql.postgresql import checkup as postgresql_checkup
from taskmq.transport.sql.postgresql.session import PgSession

PATIENCE = 10.0


def until(done: Callable[[], Any], what: str) -> None:
    """Look until it is so."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Side(Protocol):
    """A server, and how one does to it what tests want."""

    server: Any
    session: type[Any]
    deadlock: Exception
    cut: Exception
    """What the driver raises when a transaction was undone, and when the connection has gone."""

    def url(self, place: str, **more: str) -> str:
        """The store in a place."""
        ...

    def place(self) -> str:
        """An empty place with the schema."""
        ...

    def bare(self) -> str:
        """A place without the schema."""
        ...

    def execute(self, statement: str, place: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator."""
        ...

    def connect(self, place: str) -> Any:
        """The administrator's transactional connection."""
        ...

    def reader(self, place: str) -> str:
        """A new user who may only read."""
        ...

    def writer(self, place: str) -> str:
        """A new user who may do what a worker needs, and nothing else."""
        ...

    def secret(self) -> str:
        """A user whose password is ``right``."""
        ...

    def kill_sessions(self, place: str, count: int) -> None:
        """End some of the sessions that work in this place."""
        ...

    def somebody_waits(self) -> bool:
        """Whether a transaction waits for a lock."""
        ...

    def hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every open transaction count as an old one."""
        ...

    def restart(self, *, crash: bool) -> None:
        """Stop it and start it again."""
        ...

    def halt(self) -> None:
        """Stop it."""
        ...

    def start(self) -> None:
        """Start it again."""
        ...


class Postgres:
    """PostgreSQL."""

    session = PgSession
    deadlock = psycopg.errors.DeadlockDetected("met")
    cut = psycopg.OperationalError("the connection was cut")

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.start, self.restart, self.halt = server.start, server.restart, server.halt

    def url(self, place: str, **more: str) -> str:
        return self.server.url(None if place == "nowhere" else place, **more)

    def place(self) -> str:
        return self.server.place(uuid.uuid4().hex)

    def bare(self) -> str:
        self.server.execute("CREATE SCHEMA IF NOT EXISTS nothing_here")
        return "nothing_here"

    def execute(self, statement: str, place: str | None = None) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, place or "public")

    def connect(self, place: str) -> Any:
        connection = psycopg.connect(self.server.dsn(), options=f"-csearch_path={place}")
        connection.execute("SET deadlock_timeout='10s'")  # whoever else meets it finds out first
        return connection

    def _role(self, *grants: str) -> str:
        name = f"user_{uuid.uuid4().hex[:8]}"
        self.execute(f"CREATE ROLE {name} LOGIN")
        for grant in grants:
            self.execute(f"{grant} TO {name}")
        return name

    def reader(self, place: str) -> str:
        return self._role(f"GRANT USAGE ON SCHEMA {place}", f"GRANT SELECT ON ALL TABLES IN SCHEMA {place}")

    def writer(self, place: str) -> str:
        rights = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place}"
        return self._role(f"GRANT USAGE ON SCHEMA {place}", rights, f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {place}")

    def secret(self) -> str:
        if not self.execute("SELECT 1 FROM pg_roles WHERE rolname='secret'"):
            self.execute("CREATE ROLE secret LOGIN PASSWORD 'right'")
            rules = Path(self.server.folder, "data", "pg_hba.conf")
            rules.write_text("local all secret scram-sha-256\n" + rules.read_text())
            self.execute("SELECT pg_reload_conf()")
            until(self._asks, "the server does not ask for the password")
        return "secret"

    def _asks(self) -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(f"host={self.server.folder} user=secret dbname=postgres").close()
            return False
        return True

    def kill_sessions(self, place: str, count: int) -> None:
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE application_name='taskmq' "
            f"ORDER BY random() LIMIT {count}) victims"
        )

    def somebody_waits(self) -> bool:
        return bool(self.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type='Lock'"))

    def hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        old, at_once = f"secs => {postgresql_checkup.OLD_TRANSACTION}", "secs => 0"
        monkeypatch.setattr(postgresql_checkup, "OLDEST", postgresql_checkup.OLDEST.replace(old, at_once))


class Mariadb:
    """MariaDB."""

    session = MysqlSession
    deadlock = pymysql.OperationalError(1213, "Deadlock found when trying to get lock")
    cut = pymysql.OperationalError(2013, "Lost connection to MySQL server during query")

    def __init__(self, server: MariadbServer) -> None:
        self.server = server
        self.start, self.restart, self.halt = server.start, server.restart, server.halt

    def url(self, place: str, **more: str) -> str:
        return self.server.url(more.pop("database", place), **more)

    def place(self) -> str:
        return self.server.place(uuid.uuid4().hex)

    def bare(self) -> str:
        self.server.execute("CREATE DATABASE IF NOT EXISTS nothing_here")
        return "nothing_here"

    def execute(self, statement: str, place: str | None = None) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, place)

    def connect(self, place: str) -> Any:
        words = {"unix_socket": self.server.socket, "user": "root", "charset": "utf8mb4"}
        return _Executing(pymysql.connect(**words, database=place))

    def _user(self, rights: str, place: str) -> str:
        name = f"user_{uuid.uuid4().hex[:8]}"
        self.execute(f"CREATE USER {name}@localhost")
        self.execute(f"GRANT {rights} ON {place}.* TO {name}@localhost")
        return name

    def reader(self, place: str) -> str:
        return self._user("SELECT", place)

    def writer(self, place: str) -> str:
        return self._user("SELECT, INSERT, UPDATE, DELETE", place)

    def secret(self) -> str:
        self.execute("CREATE OR REPLACE USER secret@localhost IDENTIFIED BY 'right'")
        return "secret"

    def kill_sessions(self, place: str, count: int) -> None:
        sessions = f"SELECT id FROM information_schema.processlist WHERE db='{place}' ORDER BY RAND() LIMIT {count}"
        for (session,) in self.execute(sessions):
            with suppress(pymysql.Error):  # it has ended by itself
                self.execute(f"KILL {session}")

    def somebody_waits(self) -> bool:
        return bool(self.execute("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'"))

    def hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mysql_checkup, "OLD_TRANSACTION", 0)


class _Executing:
    """A PyMySQL connection that is spoken to as psycopg's."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        self._connection.commit()

    def __enter__(self) -> _Executing:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def shared(name: str) -> Side:
    """The server of this name that the tests of this process share."""
    return Mariadb(mariadb_server()) if name == "mariadb" else Postgres(postgres_server(_kind(name)))


def _kind(name: str) -> Kind:
    return "postgresql-new" if name == "postgresql-new" else "postgresql"


@cache
def own(name: str) -> Side:
    """A server that tests may stop and start."""
    return Mariadb(MariadbServer()) if name == "mariadb" else Postgres(PostgresServer(_kind(name)))


@contextmanager
def lost_commit(side: Side, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next COMMIT happens, and its connection ends before the answer."""
    commit = side.session.commit

    def cut(session: Any) -> None:
        monkeypatch.setattr(side.session, "commit", commit)
        commit(session)
        session.committing = True
        connection = getattr(session, "_connection", None) or session._cursor.connection
        connection.close()
        raise side.cut

    with monkeypatch.context():
        monkeypatch.setattr(side.session, "commit", cut)
        yield
    monkeypatch.setattr(side.session, "commit", commit)
