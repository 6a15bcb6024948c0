"""Huey."""

# mypy: ignore-errors
from __future__ import annotations

from huey import RedisHuey
from peer import URL, mark, threads

huey = RedisHuey("peer", url=URL)


@huey.task()
def noop(value):
    mark(value)


def publish():
    threads(noop)
