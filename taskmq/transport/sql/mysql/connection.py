"""The MySQL and MariaDB engine. Most of it is in ``server``.

There is no notice between processes: an idle worker asks every 40 ms whether something can be claimed, which costs the
server 0.1 ms; a publish in its own process wakes it at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, SERVER_STATUS
from pymysql.cursors import Cursor

from taskmq.clock import Clock
from taskmq.errors import InvalidArgument, TaskMQError, TransportUnavailable
from taskmq.transport.base import Finding
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.foreign import driver_connection
from taskmq.transport.sql.mysql import hot
from taskmq.transport.sql.mysql.errors import lost, map_errors, may_run_again, refused, translate
from taskmq.transport.sql.mysql.packet import Sent
from taskmq.transport.sql.mysql.session import LONG_SLOTS, MysqlSession
from taskmq.transport.sql.mysql.settings import Settings
from taskmq.transport.sql.mysql.words import NEXT_DUE, WORDS
from taskmq.transport.sql.server import ServerEngine
from taskmq.transport.sql.transport import SqlTransport
from taskmq.transport.sql.words import Words

T = TypeVar("T")
POLLED = 0.04
VERSION = "SELECT max(version) FROM taskmq_schema"
BEGIN = "START TRANSACTION"
MODE = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
"""What a server's sql_mode says must not change what our statements mean."""
SETUP = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION sql_mode='{MODE}', innodb_lock_wait_timeout=30",
)
# A probe for work is a few looks into indexes; turned into a temporary table it is a scan of all that is ready.
MARIADB = "SET SESSION optimizer_switch='exists_to_in=off,materialization=off,semijoin=off'"
MYSQL = "SET SESSION optimizer_switch='materialization=off,semijoin=off'"

if TYPE_CHECKING:
    MysqlConnection = Connection[Cursor]
else:
    MysqlConnection = Connection  # generic for type checkers alone


class MysqlEngine(ServerEngine[MysqlConnection]):
    """A MySQL or MariaDB database."""

    name = "mysql"
    words: ClassVar[Words] = WORDS
    next_due: ClassVar[str] = NEXT_DUE
    error: ClassVar[type[Exception]] = pymysql.Error

    def __init__(self, settings: Settings, namespace: str) -> None:
        self.settings = settings
        super().__init__(settings.where, namespace, settings.pool, settings.patience)

    def _connect(self) -> MysqlConnection:
        return connect(self.settings)

    def _transaction(self, connection: MysqlConnection) -> MysqlSession:
        return MysqlSession(connection, self.namespace, [BEGIN])

    def _rows(self, connection: MysqlConnection, statement: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def _usable(self, connection: MysqlConnection) -> bool:
        return connection.open and not _in_transaction(connection)

    def _undo(self, connection: MysqlConnection) -> None:
        try:
            if connection.open:
                connection.rollback()
        except (pymysql.Error, OSError):
            connection.close()

    def _lost(self, error: Exception) -> bool:
        return lost(error)

    def _may_run_again(self, error: Exception) -> bool:
        return may_run_again(error)

    def _translate(self, error: Exception) -> TaskMQError:
        assert isinstance(error, pymysql.Error)
        return translate(error)

    def _schema_version(self) -> int:
        with self._reader() as connection:
            return int(self._rows(connection, VERSION, {})[0][0] or 0)

    def _server_time(self) -> int:
        with self._reader() as connection:
            return int(self._rows(connection, hot.NOW, {})[0][0])

    def _pause(self) -> float:
        return POLLED

    def within(self, connection: object, queues: Sequence[str], work: Callable[[Session], T]) -> T:
        """Run ``work`` in a user's transaction; waiting workers see it when they look next after its commit."""
        self._check()
        user = driver_connection(connection, Connection, "a pymysql.Connection")
        with map_errors():
            if user.get_autocommit() and not _in_transaction(user):
                raise InvalidArgument("the connection is in autocommit: begin() a transaction first")
            with user.cursor(Cursor) as cursor:
                cursor.execute("SELECT DATABASE()")
                (database,) = cursor.fetchone() or (None,)
                if database != self.settings.database:
                    raise InvalidArgument(
                        f"the connection is to {database}, and the tasks are in {self.settings.where}"
                    )
                cursor.execute("SAVEPOINT taskmq")
                session = GuestSession(user, self.namespace)
                try:
                    result = work(session)
                    session.send()
                except BaseException:
                    cursor.execute("ROLLBACK TO SAVEPOINT taskmq")
                    raise
                cursor.execute("RELEASE SAVEPOINT taskmq")
        return result

    def checkup(self) -> list[Finding]:
        """What is wrong with the database and its settings."""
        from taskmq.transport.sql.mysql.checkup import checkup  # for operators only: no worker pays for it

        with self._reader() as connection:
            return checkup(lambda statement: self._rows(connection, statement, {}), self.namespace)


class GuestSession(MysqlSession):
    """The statements of a publish in a transaction that is not ours, one by one: its connection may know no packets."""

    def __init__(self, connection: MysqlConnection, namespace: str) -> None:
        super().__init__(connection, namespace, ())
        self.slots = LONG_SLOTS

    def _exchange(self, pending: Sequence[Sent]) -> None:
        for sent in pending:
            super()._exchange([sent])


def connect(settings: Settings) -> MysqlConnection:
    """A connection that is set up as the statements expect it."""
    _probe(settings)
    try:
        connection = MysqlConnection(
            **settings.parameters, charset="utf8mb4", autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS
        )
    except pymysql.Error as error:
        raise refused(error, settings.where) from error
    with map_errors(), connection.cursor() as cursor:
        for statement in (*SETUP, MARIADB if is_mariadb(connection) else MYSQL):
            cursor.execute(statement)
    return connection


def _probe(settings: Settings) -> None:
    """Raise TransportUnavailable where nobody answers on the unix socket: the driver would leave its own one open."""
    path = settings.parameters.get("unix_socket")
    if path is not None:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(settings.parameters["connect_timeout"])
            try:
                probe.connect(path)
            except OSError as error:
                raise TransportUnavailable(f"{settings.where}: no connection: {error.strerror or error}") from error


def is_mariadb(connection: MysqlConnection) -> bool:
    """Which of the two it is."""
    return "mariadb" in str(connection.get_server_info()).lower()  # type: ignore[no-untyped-call]


def _in_transaction(connection: Any) -> bool:
    return bool(connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


def open_url(url: str, *, namespace: str = "default", clock: Clock | None = None) -> SqlTransport:
    """The store of a ``mysql://`` or ``mariadb://`` URL."""
    return SqlTransport(MysqlEngine(Settings(url), namespace), clock)
