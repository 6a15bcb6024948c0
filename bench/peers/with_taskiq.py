"""Taskiq with the list broker of taskiq-redis."""

# mypy: ignore-errors
from __future__ import annotations

from peer import URL, coroutines, mark
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker(URL)


@broker.task(task_name="noop")
async def noop(value):
    mark(value)


def publish():
    coroutines(noop.kiq, broker.startup)
