"""The bare framework: a route that answers its body, served as the server serves its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Serve on a free port, and say where."""
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        return Response(await request.body(), media_type="application/json")

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(256)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    app = Starlette(routes=[Route("/echo", answer, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, http="httptools", log_config=None, access_log=False)).run(sockets=[listening])


@contextmanager
def echo() -> Iterator[str]:
    """Its URL, while it runs in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "bench.server.echo"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


if __name__ == "__main__":
    main()
