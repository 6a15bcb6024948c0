"""Commands to a server and its replies, over one connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ResponseError,
)
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as TimedOut

from taskmq.errors import OutcomeUnknown, TransportUnavailable

try:
    import hiredis

    _pack: Any = hiredis.pack_command
except ImportError:  # it comes with taskmq[redis]; without it everything is slower
    _pack = None

Command = Sequence[bytes | str | int | float]
Piece = Command | bytes
"""A command, or commands as they travel."""


def exchange(shown: str, connection: Any, commands: Sequence[Command]) -> list[Any]:
    """Send commands together and read all replies, errors among them."""
    send(shown, connection, commands)
    return receive(shown, connection, len(commands))


def send(shown: str, connection: Any, commands: Sequence[Piece]) -> None:
    """Send commands together."""
    try:
        connection.send_packed_command([_packed(connection, commands)], check_health=False)
    except (ConnectionLost, TimedOut, OSError) as error:
        raise OutcomeUnknown(f"{shown}: the connection was lost: {error}") from error


def receive(shown: str, connection: Any, count: int) -> list[Any]:
    """The replies to so many commands, errors among them."""
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(connection.read_response())
        except (ResponseError, AuthenticationError) as error:
            replies.append(error)
        except BusyLoadingError as error:
            raise TransportUnavailable(f"{shown} is loading its data: {error}") from error
        except (ConnectionLost, TimedOut, OSError) as error:
            raise OutcomeUnknown(f"{shown}: the answer was lost: {error}") from error
    return replies


def packed_ahead(commands: Sequence[Command]) -> bytes | None:
    """Commands as they travel, to be sent more than once; None where the driver has to pack them."""
    return None if _pack is None else b"".join([_pack(tuple(command)) for command in commands])


def _packed(connection: Any, commands: Sequence[Piece]) -> bytes:
    """Commands as they travel, in one piece. The driver's own packing looks at each argument before hiredis does."""
    if _pack is None:
        return b"".join(piece for command in commands for piece in connection.pack_command(*command))
    if len(commands) == 1 and type(commands[0]) is not bytes:
        return _pack(tuple(commands[0]))  # type: ignore[no-any-return]
    return b"".join([command if type(command) is bytes else _pack(tuple(command)) for command in commands])


def is_woken(reply: Exception) -> bool:
    """Whether a server says by it that nobody can wait here any more: it is a replica now."""
    return str(reply).startswith("UNBLOCKED")
