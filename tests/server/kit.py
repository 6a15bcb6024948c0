"""A real server in this process, on a thread of its own, and what tests say to it."""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from websockets.sync.client import ClientConnection, connect

from taskmq.server.app import Application
from taskmq.server.database import directory, migrations
from taskmq.server.database.engine import Database
from taskmq.server.permissions import BOOTSTRAP, WORKER, Grant
from taskmq.server.run import bind, configured
from taskmq.server.settings import Settings
from taskmq.transport.serving import ServingStore
from taskmq.wire.codes import MAX_MESSAGE, SUBPROTOCOL
from taskmq.wire.credentials import Credentials

LOOPBACK = "127.0.0.1"


class Running:
    """A server that runs; ``token`` opens everything of one environment with a queue ``initial``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url)
        migrations.up(self.database)
        self.token, self.environment = self.grant()
        self.application = Application(settings)
        listening = bind(settings)
        self.port = listening.getsockname()[1]
        self.url = f"{settings.scheme}://{LOOPBACK}:{self.port}"
        self.trusted = None if settings.tls_cert is None else ssl.create_default_context(cafile=settings.tls_cert)
        self.server = uvicorn.Server(configured(self.application, settings))
        self.loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self.thread.start()
        assert self._up.wait(20), "the server does not start"
        self.http = self.client(self.token)

    def _run(self, listening: Any) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            task = asyncio.create_task(self.server.serve(sockets=[listening]))
            while not self.server.started and not task.done():  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.01)
            self._up.set()
            await task

        asyncio.run(serve())

    def stop(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join(20)
        self.database.close()
        assert not self.thread.is_alive()

    def drain(self, grace: float) -> None:
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(self.application.drain(grace), self.loop).result(20)

    def grant(
        self,
        *grants: Grant,
        application: str = "app",
        namespace: str = "ns",
        environment: str = "test",
        expires_at: int | None = None,
    ) -> tuple[str, str]:
        """A new token of an environment, and the environment's id; all bootstrap scopes if none are named."""
        wanted = grants or tuple(Grant(scope) for scope in (*BOOTSTRAP, *WORKER))
        with self.database.write() as connection:
            place = directory.make_place(connection, application, namespace, environment)
            directory.make_queue(connection, place.environment_id, "initial")
            made = directory.make_token(connection, place.environment_id, "test", wanted, expires_at)
        if hasattr(self, "application"):
            self.application.node._finish_changes()
        return made.token, place.environment_id

    def tenant(self, name: str) -> Running:
        """The same server, seen from an environment of its own."""
        return self.seen_by(*self.grant(environment=name))

    def seen_by(self, token: str, environment: str) -> Running:
        """The same server, with this token."""
        other = copy.copy(self)
        other.token, other.environment = token, environment
        other.http = self.client(token)
        return other

    def client(self, token: str | None) -> httpx2.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=20, verify=self.trusted or True)

    def credentials(self, token: str | None = None) -> Credentials:
        return Credentials(token=token or self.token)

    @property
    def store(self) -> ServingStore:
        return self.application.node.stores.of(self.environment)

    def submit(self, key: str, **fields: Any) -> dict[str, Any]:
        body = {"queue": "initial", "handler": "h", **fields}
        answer = self.http.post("/v1/tasks", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code in (200, 201), answer.text
        data: dict[str, Any] = answer.json()["data"]
        return data

    def task(self, task_id: str, wait_ms: int = 0) -> dict[str, Any]:
        data: dict[str, Any] = self.http.get(f"/v1/tasks/{task_id}", params={"wait_ms": wait_ms}).json()["data"]
        return data


@contextmanager
def running(path: Path, **settings: Any) -> Iterator[Running]:
    server = Running(
        Settings(
            **{
                "database_url": f"sqlite:///{path / 'server.db'}?synchronous=off",
                "http_addr": f"{LOOPBACK}:0",
                "node": "n1",
                "grace": 0.5,
                **settings,
            }
        )
    )
    try:
        yield server
    finally:
        server.stop()


class Socket:
    """A worker's WebSocket, message by message."""

    def __init__(self, server: Running, token: str | None = "", url: str | None = None, **headers: str) -> None:
        token = server.token if token == "" else token
        sent = {**headers, **({} if token is None else {"Authorization": f"Bearer {token}"})}
        base = (url or server.url).replace("http", "ws", 1)
        connecting = connect(
            f"{base}/v1/workers/connect", additional_headers=sent, subprotocols=[SUBPROTOCOL], max_size=MAX_MESSAGE,
            compression=None, close_timeout=0.2, ssl=server.trusted,
        )  # fmt: skip
        self.link: ClientConnection = connecting.__enter__()
        self.ref = 0
        self.stray: list[dict[str, Any]] = []

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def say(self, **message: Any) -> None:
        self.link.send(json.dumps(message))

    def hear(self, timeout: float = 5.0) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.link.recv(timeout=timeout))
        return value

    def hello(self, *handlers: str, capacity: int = 5, **more: Any) -> dict[str, Any]:
        capabilities = [{"handler": name} for name in handlers or ("h",)]
        self.say(type="hello", protocol=1, worker_id="w-7", capabilities=capabilities, capacity=capacity, **more)
        return self.hear()

    def ask(self, type: str, **message: Any) -> dict[str, Any]:  # noqa: A002
        """A request, and its answer; what has no ref is kept in ``stray``."""
        self.ref += 1
        self.say(type=type, ref=self.ref, **message)
        return self.answer(self.ref)

    def answer(self, ref: int) -> dict[str, Any]:
        while True:
            message = self.hear()
            if message.get("ref") == ref:
                return message
            self.stray.append(message)

    def claim(self, n: int = 1, *queues: str) -> list[dict[str, Any]]:
        reply = self.ask("claim", queues=list(queues or ("initial",)), n=n)
        assert reply["type"] in ("dispatch", "empty"), reply
        tasks: list[dict[str, Any]] = reply.get("tasks", [])
        return tasks

    def take(self) -> dict[str, Any]:
        """Claim one task and start it."""
        (task,) = self.claim()
        assert self.ask("start", **token(task))["type"] == "started"
        return task

    def closed(self) -> tuple[int, str]:
        """Code and reason of the close that comes."""
        try:
            while True:
                self.stray.append(self.hear(10))
        except Exception:
            received = self.link.protocol.close_rcvd
            assert received is not None
            return received.code, received.reason


def token(task: dict[str, Any]) -> dict[str, Any]:
    return {"task_id": task["task_id"], "epoch": task["epoch"]}
