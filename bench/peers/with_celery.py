"""Celery: a producer from its pool for each caller."""

# mypy: ignore-errors
from __future__ import annotations

import threading

from celery import Celery
from peer import URL, mark, threads

app = Celery("with_celery", broker=URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=128, broker_connection_retry_on_startup=True)
local = threading.local()


@app.task(name="noop")
def noop(value):
    mark(value)


def send(value):
    if not hasattr(local, "producer"):
        local.producer = app.amqp.Producer(app.connection_for_write())
    noop.apply_async((value,), producer=local.producer)


def publish():
    threads(send)
