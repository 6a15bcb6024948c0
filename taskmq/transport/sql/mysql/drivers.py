"""The drivers that speak to MySQL and MariaDB, and what differs between them: PyMySQL, and mysqlclient (``MySQLdb``).

``mysql://`` and ``mariadb://`` are PyMySQL, which is everywhere; ``mysql+mysqldb://`` is mysqlclient, where it is
installed. A driver is imported when its URL is opened.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from taskmq.errors import ConfigError

Parameters = Sequence[Any] | Mapping[str, Any]


class MysqlCursor(Protocol):
    """A cursor that gives rows as tuples."""

    description: Any
    rowcount: int
    lastrowid: Any

    def mogrify(self, query: str, args: Any = None) -> str:
        """The statement with its parameters in it."""
        ...

    def execute(self, query: str, args: Any = None) -> Any:
        """Run a statement, or several."""
        ...

    def nextset(self) -> Any:
        """Go to the answer of the next statement; true if there is one."""
        ...

    def fetchall(self) -> Sequence[tuple[Any, ...]]:
        """All rows of the answer."""
        ...

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row."""
        ...

    def __enter__(self) -> MysqlCursor: ...

    def __exit__(self, *args: object) -> None: ...


class MysqlConnection(Protocol):
    """A connection of either driver."""

    open: Any

    def cursor(self) -> MysqlCursor:
        """A cursor of the connection's own kind."""
        ...

    def autocommit(self, on: bool) -> Any:
        """Whether each statement is a transaction."""
        ...

    def get_autocommit(self) -> Any:
        """The same, asked."""
        ...

    def get_server_info(self) -> Any:
        """The server's version."""
        ...

    def rollback(self) -> Any:
        """Undo the transaction."""
        ...

    def close(self) -> Any:
        """End it."""
        ...


class Driver(Protocol):
    """One of the two."""

    error: type[Exception]
    """The root of its errors; they carry the server's number and words."""
    connection: type[Any]
    named: str
    """A user's connection, for messages."""

    def connect(self, parameters: Mapping[str, Any]) -> MysqlConnection:
        """A connection in autocommit that takes several statements at a time."""
        ...

    def cursor(self, connection: Any) -> MysqlCursor:
        """A plain cursor, whatever the connection's own are."""
        ...

    def in_transaction(self, connection: Any) -> bool:
        """Whether a transaction is open, as far as the driver knows."""
        ...


class PyMysql:
    """PyMySQL."""

    named = "a pymysql.Connection"

    def __init__(self) -> None:
        try:
            import pymysql
            from pymysql.constants import CLIENT, SERVER_STATUS
            from pymysql.cursors import Cursor
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"mysql:// and mariadb:// need {error.name!r}, which is not installed: pip install taskmq[mysql]"
            ) from error

        class TidyConnection(pymysql.connections.Connection):
            """Closes its socket also when nobody answers on it, which the driver forgets."""

            def connect(self, sock: Any = None) -> None:
                if sock is None and self.unix_socket:
                    sock = socket.socket(socket.AF_UNIX)
                    sock.settimeout(self.connect_timeout)
                    try:
                        sock.connect(self.unix_socket)
                    except OSError as error:
                        sock.close()
                        raise pymysql.OperationalError(2002, error.strerror or str(error)) from error
                    self._secure = True  # as the driver does: a password may be sent over it
                super().connect(sock)

        self.error: type[Exception] = pymysql.Error
        self.connection: type[Any] = pymysql.connections.Connection
        self._connection: type[Any] = TidyConnection
        self._cursor = Cursor
        self._flag = CLIENT.MULTI_STATEMENTS
        self._open = SERVER_STATUS.SERVER_STATUS_IN_TRANS

    def connect(self, parameters: Mapping[str, Any]) -> MysqlConnection:
        """A connection."""
        made: MysqlConnection = self._connection(
            **parameters, charset="utf8mb4", autocommit=True, client_flag=self._flag
        )
        return made

    def cursor(self, connection: Any) -> MysqlCursor:
        """A cursor."""
        made: MysqlCursor = connection.cursor(self._cursor)
        return made

    def in_transaction(self, connection: Any) -> bool:
        """What the server's last answer said."""
        return bool(connection.server_status & self._open)


class MysqlClient:
    """mysqlclient. It does not say whether a transaction is open, so one in autocommit counts as having none."""

    named = "a MySQLdb connection"

    def __init__(self) -> None:
        try:
            import MySQLdb
            from MySQLdb.connections import Connection
            from MySQLdb.constants import CLIENT
            from MySQLdb.cursors import Cursor
        except ModuleNotFoundError as error:
            raise ConfigError(
                "mysql+mysqldb:// needs mysqlclient, which is not installed: pip install mysqlclient, or write mysql://"
            ) from error

        class PlainCursor(Cursor):  # type: ignore[misc]
            def mogrify(self, query: str, args: Any = None) -> str:
                literal, encoding = self.connection.literal, self.connection.encoding
                if isinstance(args, Mapping):
                    return query % {name: literal(value).decode(encoding) for name, value in args.items()}
                return query % tuple(literal(value).decode(encoding) for value in args or ())

        self.error: type[Exception] = MySQLdb.Error
        self.connection: type[Any] = Connection
        self._cursor = PlainCursor
        self._flag = CLIENT.MULTI_STATEMENTS | CLIENT.MULTI_RESULTS

    def connect(self, parameters: Mapping[str, Any]) -> MysqlConnection:
        """A connection."""
        given = {name: value for name, value in parameters.items() if value is not None}
        ssl = {name: given.pop(f"ssl_{name}") for name in ("ca", "cert", "key") if f"ssl_{name}" in given}
        if ssl:
            given["ssl"] = ssl
        made: MysqlConnection = self.connection(**given, charset="utf8mb4", autocommit=True, client_flag=self._flag)
        return made

    def cursor(self, connection: Any) -> MysqlCursor:
        """A cursor."""
        made: MysqlCursor = connection.cursor(self._cursor)
        return made

    def in_transaction(self, connection: Any) -> bool:
        """Nobody knows."""
        return False


@cache
def pymysql_driver() -> Driver:
    """PyMySQL."""
    return PyMysql()


@cache
def mysqldb_driver() -> Driver:
    """mysqlclient; raises ConfigError where it is not installed."""
    return MysqlClient()


def driver_of(scheme: str) -> Driver:
    """The driver that a URL's scheme names."""
    return mysqldb_driver() if scheme.endswith("+mysqldb") else pymysql_driver()
