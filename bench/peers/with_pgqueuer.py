"""pgqueuer, for PostgreSQL: coroutines over asyncpg on uvloop; a hundred are enqueued in one statement.

As a program it is the worker: ``pgq run`` of 1.6 fails with the versions of typer that pip finds for it.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio

import asyncpg
import uvloop
from peer import TASKS, URL, mark
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries


async def work():
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @queuer.entrypoint("noop")
    async def noop(job):
        mark(int(job.payload))

    await queuer.run(batch_size=100)


async def fill():
    queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))
    await queries.install()
    for start in range(0, TASKS, 100):
        values = [str(value).encode() for value in range(start, min(start + 100, TASKS))]
        await queries.enqueue(["noop"] * len(values), values, [0] * len(values))


def publish():
    asyncio.run(fill())


if __name__ == "__main__":
    uvloop.run(work())
