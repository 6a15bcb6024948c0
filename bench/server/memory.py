"""What an idle worker's connection costs in memory."""

from __future__ import annotations

import asyncio
import time

from bench.common import figure
from bench.server.served import Served
from bench.server.sockets import workers


def idle_connections(at: Served, count: int) -> None:
    """KiB for each connection that has said hello and claims nothing."""
    grown = asyncio.run(_grown(at, count)) / count / 1024
    figure(f"{at.kind}, memory of an idle worker connection", f"{grown:.0f} KiB", grown, "<= 100")


async def _grown(at: Served, count: int) -> int:
    for worker in await workers(at, 1, 1):  # what the first connection brings for all
        await worker.close()
    before: int = at.process.memory_info().rss
    idle = await workers(at, count, 1)
    time.sleep(1)  # noqa: ASYNC251 - nothing else happens here
    grown: int = at.process.memory_info().rss - before
    await asyncio.gather(*(worker.close() for worker in idle))
    return grown
