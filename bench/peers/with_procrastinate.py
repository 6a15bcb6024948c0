"""procrastinate, for PostgreSQL: coroutines; a hundred are deferred in one statement, as its documentation says."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio

from peer import TASKS, URL, mark
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=URL))


@app.task(name="noop")
async def noop(value):
    mark(value)


async def fill():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, TASKS, 100):
            await noop.batch_defer_async(*({"value": value} for value in range(start, min(start + 100, TASKS))))


def publish():
    asyncio.run(fill())
