"""Statements in one exchange, over the driver's lower level (``psycopg.pq``).

psycopg's own pipeline sends each statement as soon as it has been given to it. That is a write for each, and on a busy
machine the server, woken by the first, takes the processor from the client between two of them: five small statements
took 0.35 ms of the client's processor, and 6 ms by the clock while others were at work. Kept in libpq's buffer until
all are there, and their rows loaded by psycopg's loaders, the same five take 0.04 ms and 0.4 to 1 ms.

Every statement is prepared when it first runs with these types of parameters, in the exchange that needs it, up to some
hundreds of them, for searches have many texts; behind a pooler in transaction mode none is. All numbers are ``bigint``,
whatever their size: one plan a statement.
"""

from __future__ import annotations

import re
import select
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

Parameters = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]

MOST = 400
"""Statements that are prepared on a connection."""

_Prepared = tuple[bytes, tuple[int, ...]]
"""A statement with the types of its parameters."""
_UNKNOWN, _BIGINT, _DOUBLE, _TEXTS = 0, 20, 701, 1009
"""Types of parameters, by their numbers in the server's catalogue; of a text or NULL the server finds out itself."""
_PLACE = re.compile(r"%(?:\((\w+)\))?s")
_TO_BE_QUOTED = re.compile(r'(["\\])')


class Sent:
    """A statement that is kept back, and its answer once it has been sent."""

    __slots__ = ("count", "failed", "parameters", "rows", "statement")

    rows: Rows
    count: int
    """How many rows it has changed or found."""

    def __init__(self, statement: str, parameters: Parameters) -> None:
        self.failed = False
        """Whether the server has refused it."""
        self.statement = statement
        self.parameters = parameters


@lru_cache(1024)
def _compiled(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """The text in the server's words, and the names of its parameters in order; none where they have no names."""
    names: list[str] = []
    count = 0

    def number(match: re.Match[str]) -> str:
        nonlocal count
        if match[1] is None:
            count += 1
            return f"${count}"
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _PLACE.sub(number, statement).encode(), tuple(names)


def _bound(value: Any) -> tuple[int, bytes | None]:
    """A parameter's type and its text."""
    if isinstance(value, str):
        if "\0" in value:  # where a C string ends
            raise psycopg.DataError("text for PostgreSQL cannot contain NUL (0x00)")
        return _UNKNOWN, value.encode()
    if isinstance(value, int):
        return _BIGINT, b"%d" % value
    if value is None:
        return _UNKNOWN, None
    if isinstance(value, float):
        return _DOUBLE, repr(value).encode()
    texts = ",".join('"' + _TO_BE_QUOTED.sub(r"\\\1", text) + '"' for text in value)
    return _TEXTS, f"{{{texts}}}".encode()


_Expected = tuple[Sent, _Prepared | None]
"""Whose answer comes next: a statement's, or before it that of its preparation."""


class NotSent(psycopg.OperationalError):
    """The connection had ended before anything was sent."""


class Line(psycopg.Connection[tuple[Any, ...]]):
    """A connection of ours; its text is UTF-8."""

    exchanger: Exchanger


class Exchanger:
    """The exchanges of one connection. ``prepared``: whether a session outlives a transaction."""

    def __init__(self, connection: Line, prepared: bool) -> None:
        self._connection = connection
        self._line = connection.pgconn
        self._prepared = prepared
        self._names: dict[_Prepared, bytes] = {}
        self._fresh: dict[_Prepared, bytes] = {}
        """Those whose preparation has been sent and not been answered."""
        self._made = 0
        self._loader = Transformer(connection)
        self._news = select.poll()
        self._news.register(self._line.socket, select.POLLIN)

    def run(self, statements: Sequence[Sent]) -> None:
        """Send them all, and take their answers; raises the first one's error, after which none has taken effect.

        Unless the transaction had begun before, or begins and ends among them. An exchange that is interrupted closes
        the connection: what comes out of it next would be somebody else's answers.
        """
        self._probe()
        clean = False
        try:
            self._line.enter_pipeline_mode()
            error = self._receive(self._send(statements))
            if self._line.status == pq.ConnStatus.OK:
                self._line.exit_pipeline_mode()
                clean = True
        finally:
            if not clean:
                self._connection.close()
        if error is not None:
            raise error

    def _probe(self) -> None:
        """Raise NotSent where the server has gone: in an exchange that also commits, nobody would know afterwards."""
        line = self._line
        if line.status != pq.ConnStatus.OK:
            raise NotSent("the connection is closed")
        try:
            while self._news.poll(0):
                line.consume_input()
        except psycopg.OperationalError as error:
            self._connection.close()
            raise NotSent(str(error)) from error

    def _send(self, statements: Sequence[Sent]) -> list[_Expected]:
        """All statements and the sync behind them; what their answers belong to, in order."""
        line, names = self._line, self._names
        expected: list[_Expected] = []
        fresh: dict[_Prepared, bytes] = {}
        for sent in statements:
            text, order = _compiled(sent.statement)
            parameters = sent.parameters
            values = [parameters[name] for name in order] if isinstance(parameters, Mapping) else parameters
            bound = [_bound(value) for value in values]
            types = tuple([kind for kind, _ in bound])
            texts = [value for _, value in bound]
            key = (text, types)
            name = names.get(key) or fresh.get(key)
            if name is None and self._prepared and self._made < MOST:
                self._made += 1
                name = fresh[key] = b"taskmq_%d" % self._made
                line.send_prepare(name, text, types)
                expected.append((sent, key))
            if name is None:
                line.send_query_params(text, texts, types)
            else:
                line.send_query_prepared(name, texts)
            expected.append((sent, None))
        line.pipeline_sync()
        self._fresh = fresh
        return expected

    def _receive(self, expected: Sequence[_Expected]) -> psycopg.Error | None:
        """Every answer; the first error."""
        self._flush()
        error: psycopg.Error | None = None
        for sent, key in expected:
            try:
                result = self._next()
            except psycopg.OperationalError:
                raise error or psycopg.OperationalError("the connection was lost") from None
            status = result.status
            if status == pq.ExecStatus.FATAL_ERROR:
                if result.error_field(pq.DiagnosticField.SQLSTATE) is None:  # libpq says it, and not the server
                    raise error or psycopg.OperationalError(result.get_error_message())
                error = error or error_from_result(result)
                sent.failed = True
            elif error is None and key is not None:
                self._names[key] = self._fresh[key]
            elif error is None:
                sent.count = result.command_tuples or 0
                if status == pq.ExecStatus.TUPLES_OK:
                    self._loader.set_pgresult(result)
                    sent.rows = self._loader.load_rows(0, result.ntuples, tuple)
                else:
                    sent.rows = []
        if error is None or self._line.status == pq.ConnStatus.OK:
            self._next()  # of the sync
        return error

    def _flush(self) -> None:
        """Give everything to the network; the server may have to be read from before it takes more."""
        line = self._line
        if line.flush() == 0:
            return
        wait = select.poll()
        wait.register(line.socket, select.POLLIN | select.POLLOUT)
        while line.flush() != 0:
            for _, event in wait.poll():
                if event & ~select.POLLOUT:
                    line.consume_input()

    def _next(self) -> Any:
        """The next result; between those of two statements there is an empty one."""
        line = self._line
        while True:
            while line.is_busy():
                self._news.poll()
                line.consume_input()
            result = line.get_result()
            if result is not None:
                return result
            if line.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError("the connection was lost")


__all__ = ["Exchanger", "Line", "Parameters", "Sent"]
