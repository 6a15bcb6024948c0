"""Dramatiq."""

# mypy: ignore-errors
from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from peer import URL, mark, threads

dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor
def noop(value):
    mark(value)


def publish():
    threads(noop.send)
