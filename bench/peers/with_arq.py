"""Arq: a hundred places and a short poll for its worker."""

# mypy: ignore-errors
from __future__ import annotations

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import func
from peer import URL, coroutines, mark

settings = RedisSettings.from_dsn(URL)
pool = None


async def noop(ctx, value):
    mark(value)


class WorkerSettings:
    functions = (func(noop, name="noop", keep_result=0),)
    redis_settings = settings
    max_jobs = 100
    poll_delay = 0.01


async def start():
    global pool
    pool = await create_pool(settings)


def publish():
    coroutines(lambda value: pool.enqueue_job("noop", value), start)
