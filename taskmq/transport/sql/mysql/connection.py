"""The MySQL and MariaDB engine. Most of it is in ``server``.

There is no notice between processes: an idle worker asks every 40 ms whether something can be claimed, which costs the
server 0.1 ms; a publish in its own process wakes it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from taskmq.clock import Clock
from taskmq.errors import TaskMQError
from taskmq.transport.base import Finding
from taskmq.transport.sql.engine import Session
from taskmq.transport.sql.foreign import driver_connection, no_transaction
from taskmq.transport.sql.mysql import hot
from taskmq.transport.sql.mysql.drivers import MysqlConnection
from taskmq.transport.sql.mysql.errors import lost, map_errors, may_run_again, refused, translate
from taskmq.transport.sql.mysql.guest import GuestSession, within
from taskmq.transport.sql.mysql.session import MysqlSession
from taskmq.transport.sql.mysql.settings import MODE, Settings
from taskmq.transport.sql.mysql.words import NEXT_DUE, WORDS
from taskmq.transport.sql.server import ServerEngine
from taskmq.transport.sql.transport import SqlTransport
from taskmq.transport.sql.words import Words

T = TypeVar("T")
POLLED = 0.04
VERSION = "SELECT max(version) FROM taskmq_schema"
BEGIN = "START TRANSACTION"
SETUP = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION sql_mode='{MODE}', innodb_lock_wait_timeout=30",
)
# A probe for work is a few looks into indexes; turned into a temporary table it is a scan of all that is ready.
MARIADB = "SET SESSION optimizer_switch='exists_to_in=off,materialization=off,semijoin=off'"
MYSQL = "SET SESSION optimizer_switch='materialization=off,semijoin=off'"


class MysqlEngine(ServerEngine[MysqlConnection]):
    """A MySQL or MariaDB database."""

    name = "mysql"
    words: ClassVar[Words] = WORDS
    next_due: ClassVar[str] = NEXT_DUE

    def __init__(self, settings: Settings, namespace: str) -> None:
        self.settings = settings
        self.driver = settings.driver
        self.error = self.driver.error
        super().__init__(settings.where, namespace, settings.pool, settings.patience)

    def _connect(self) -> MysqlConnection:
        return connect(self.settings)

    def _transaction(self, connection: MysqlConnection) -> MysqlSession:
        return MysqlSession(self.driver.cursor(connection), self.namespace, [BEGIN])

    def _rows(self, connection: MysqlConnection, statement: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        with self.driver.cursor(connection) as cursor:
            cursor.execute(cursor.mogrify(statement, parameters) if parameters else statement)
            return list(cursor.fetchall())

    def _usable(self, connection: MysqlConnection) -> bool:
        return bool(connection.open) and not self.driver.in_transaction(connection)

    def _undo(self, connection: MysqlConnection) -> None:
        try:
            if connection.open:
                connection.rollback()
        except (self.error, OSError):
            connection.close()

    def _lost(self, error: Exception) -> bool:
        return lost(error)

    def _may_run_again(self, error: Exception) -> bool:
        return may_run_again(error)

    def _translate(self, error: Exception) -> TaskMQError:
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
        driver = self.driver
        user = driver_connection(connection, driver.connection, driver.named)
        if user.get_autocommit() and not driver.in_transaction(user):
            raise no_transaction("begin() a transaction, or turn it off")
        with map_errors(driver.error), within(driver.cursor(user), self.settings):
            session = GuestSession(driver.cursor(user), self.namespace)
            result = work(session)
            session.send()
        return result

    def checkup(self) -> list[Finding]:
        """What is wrong with the database and its settings."""
        from taskmq.transport.sql.mysql.checkup import checkup  # for operators only: no worker pays for it

        with self._reader() as connection:
            return checkup(lambda statement: self._rows(connection, statement, {}), self.namespace)


def connect(settings: Settings) -> MysqlConnection:
    """A connection that is set up as the statements expect it."""
    driver = settings.driver
    try:
        connection = driver.connect(settings.parameters)
    except driver.error as error:
        raise refused(error, settings.where) from error
    with map_errors(driver.error), driver.cursor(connection) as cursor:
        for statement in (*SETUP, MARIADB if is_mariadb(connection) else MYSQL):
            cursor.execute(statement)
    return connection


def is_mariadb(connection: MysqlConnection) -> bool:
    """Which of the two it is."""
    return "mariadb" in str(connection.get_server_info()).lower()


def open_url(url: str, *, namespace: str = "default", clock: Clock | None = None) -> SqlTransport:
    """The store of a ``mysql://`` or ``mariadb://`` URL."""
    return SqlTransport(MysqlEngine(Settings(url), namespace), clock)
