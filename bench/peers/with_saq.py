"""Saq: a hundred places for its worker."""

# mypy: ignore-errors
from __future__ import annotations

from peer import URL, coroutines, mark
from saq import Queue

queue = Queue.from_url(URL)


async def noop(ctx, *, value):
    mark(value)


settings = {"queue": queue, "functions": [noop], "concurrency": 100}


def publish():
    coroutines(lambda value: queue.enqueue("noop", value=value), queue.connect)
