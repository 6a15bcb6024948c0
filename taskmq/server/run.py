"""Running a node until it is told to stop. Essay: why it stops in this order.

uvicorn, told to stop, closes every WebSocket at once. A worker would learn of it by a dead socket, its claim would be
lost in the pool, its reservations would wait for their end. So the first signal does not reach uvicorn. It drains: no
new requests and claims; ``drain`` to every worker; what was claimed and not sent, or sent and not started, goes back;
what was started may finish, for as long as the grace lasts. Only then are the sockets closed, with 1012, which tells
workers to come back elsewhere with what they still run, and uvicorn is let go. A second signal skips the grace.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from types import FrameType

import click
import uvicorn

from taskmq.server.app import Application
from taskmq.server.protocols import HttpProtocol, SocketProtocol
from taskmq.server.settings import Settings
from taskmq.wire.codes import MAX_MESSAGE

log = logging.getLogger("taskmq.server")

PING = 20.0


class Server(uvicorn.Server):
    """uvicorn with our way to stop."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self._application = application
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started and sockets:
            scheme = "https" if self.config.is_ssl else "http"
            host, port = sockets[0].getsockname()[:2]
            click.echo(f"listening={scheme}://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then end. Second: end now."""
        assert self._loop is not None
        if self._draining is not None or sig == signal.SIGQUIT:
            self.should_exit = self.force_exit = True
            return
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drained())

    async def _drained(self) -> None:
        try:
            await self._application.drain()
        finally:
            self.should_exit = True


def bind(settings: Settings) -> socket.socket:
    """The listening socket; raises OSError."""
    host, port = settings.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, or asyncio leaves Nagle's algorithm on, and every answer waits 40 ms for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(256)
    except OSError:
        listening.close()
        raise
    listening.set_inheritable(True)
    return listening


def configured(application: Application, settings: Settings) -> uvicorn.Config:
    """Uvicorn's settings for this application."""
    return uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        http=HttpProtocol,
        ws=SocketProtocol,
        ws_max_size=MAX_MESSAGE,
        ws_ping_interval=PING,
        ws_ping_timeout=PING,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
        backlog=256,
        lifespan="on",
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies) or None,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )


def serve(settings: Settings, listening: socket.socket) -> None:
    """Serve on this socket until a signal; raises what keeps it from starting."""
    application = Application(settings)
    server = Server(configured(application, settings), application)
    server.run(sockets=[listening])


__all__ = ["Server", "bind", "configured", "serve"]
