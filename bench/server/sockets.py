"""Workers that do nothing: sockets that claim, start and finish as fast as they are answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from bench.server.served import Served
from taskmq.wire.codes import SUBPROTOCOL


class Worker:
    """One worker's socket."""

    def __init__(self, link: ClientConnection) -> None:
        self._link = link
        self._ref = 0

    @classmethod
    async def connected(cls, at: Served, capacity: int) -> Worker:
        """A worker that has said hello."""
        headers = {"Authorization": f"Bearer {at.token}"}
        target = f"{at.url.replace('http', 'ws', 1)}/v1/workers/connect"
        link = await connect(
            target, additional_headers=headers, subprotocols=[SUBPROTOCOL], compression=None, open_timeout=60  # type: ignore[list-item]
        )  # fmt: skip
        capabilities = [{"handler": "bench"}]
        hello = {"type": "hello", "protocol": 1, "worker_id": "w", "capabilities": capabilities, "capacity": capacity}
        await link.send(json.dumps(hello))
        assert json.loads(await link.recv())["type"] == "welcome"
        return cls(link)

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """A request and its reply; what the server says of itself is left aside."""
        self._ref += 1
        await self._link.send(json.dumps({"type": kind, "ref": self._ref, **fields}))
        while True:
            answer: dict[str, Any] = json.loads(await self._link.recv())
            if answer.get("ref") == self._ref:
                return answer

    async def round(self, n: int) -> int:
        """Claim up to n tasks, start and finish them; how many there were."""
        reply = await self.ask("claim", queues=["initial"], n=n)
        items = [{"task_id": task["task_id"], "epoch": task["epoch"]} for task in reply.get("tasks", [])]
        if len(items) == 1:
            await self.ask("start", **items[0])
            await self.ask("finish", **items[0], outcome="success")
        elif items:
            await self.ask("start", items=items)
            await self.ask("finish", items=[{**item, "outcome": "success"} for item in items])
        return len(items)

    async def close(self) -> None:
        """Leave."""
        await self._link.close()


async def workers(at: Served, count: int, capacity: int) -> list[Worker]:
    """Several, connected a few at a time."""
    found: list[Worker] = []
    for start in range(0, count, 20):
        more = min(20, count - start)
        found += await asyncio.gather(*(Worker.connected(at, capacity) for _ in range(more)))
    return found
