"""RQ: by a hundred with ``enqueue_many``."""

# mypy: ignore-errors
from __future__ import annotations

from peer import URL, threads
from redis import Redis
from rq import Queue

queue = Queue(connection=Redis.from_url(URL))


def hundred(values):
    queue.enqueue_many([Queue.prepare_data("with_rq_task.noop", (value,)) for value in values])


def publish():
    threads(lambda value: queue.enqueue("with_rq_task.noop", value), hundred)
