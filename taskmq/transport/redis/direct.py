"""A connection without the driver's way between us and the socket.

redis-py connects, speaks TLS, authenticates and disconnects. In between, its ``send_packed_command`` and
``read_response`` do for every command what only others need: health checks, push messages, a host's name for an error
that does not come. Without that three calls are left – send, receive, let hiredis read – and a PING costs its caller 12
µs of processor instead of 14; each further reply of the same exchange saves again.

It is for RESP2 alone, where a server says nothing by itself: so nothing is left in the driver's reader after the
handshake, and nothing in ours between two commands.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse

try:
    import hiredis
except ImportError:  # it comes with taskmq[redis]; without it everything is slower
    hiredis = None  # type: ignore[assignment]

_MOST = 65536
"""Bytes read at once."""
_PARTIAL = object()


def direct(connection: Any) -> Any:
    """A connected connection of redis-py made direct; itself where hiredis or what we know of the driver is missing."""
    socket = getattr(connection, "_sock", None)
    error_of = getattr(getattr(connection, "_parser", None), "parse_error", None)
    if hiredis is None or socket is None or error_of is None:
        return connection
    return Direct(connection, socket, error_of)


class Direct:
    """What is used of redis-py's connection once it is connected; errors of the socket are raised as they are."""

    __slots__ = ("_feed", "_next", "_receive", "_send", "can_read", "disconnect", "pack_command")

    def __init__(self, connection: Any, socket: Any, error_of: Any) -> None:
        """``error_of``: the exception for what a server says instead of a reply."""
        reader = hiredis.Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=_PARTIAL)
        self._feed, self._next = reader.feed, reader.gets
        self._send, self._receive = socket.sendall, socket.recv
        self.can_read = connection.can_read
        self.disconnect = connection.disconnect
        self.pack_command = connection.pack_command

    def __del__(self) -> None:
        # The driver's connection does so, too. But of a store that nobody has closed the garbage collector may come to
        # the socket first, by way of this object, and warn of it.
        with suppress(Exception):  # at the end of the interpreter there may be little left
            self.disconnect()

    def send_packed_command(self, pieces: list[bytes], check_health: bool = False) -> None:
        """Send commands as they travel."""
        for piece in pieces:
            self._send(piece)

    def read_response(self) -> Any:
        """The next reply; raises it if it is an error."""
        reply = self._next()
        while reply is _PARTIAL:
            data = self._receive(_MOST)
            if not data:
                raise ConnectionLost("Connection closed by server.")
            self._feed(data)
            reply = self._next()
        if isinstance(reply, Exception):
            raise reply
        return reply
