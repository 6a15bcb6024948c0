"""The project that the tests of the command line work in, and what they do behind its back."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from taskmq.outcome import Dead
from taskmq.state import TaskInfo
from taskmq.transport.base import Find, Reserve, Settle, Settlement, Store
from taskmq.transport.registry import open_store

URL = "sqlite:///shop.db"

SHOP = f"""
from datetime import date
from taskmq import App

app = App({URL!r})


@app.task
def send(to: str, n: int = 1) -> str:
    return to * n


@app.task(queue="cases", priority=2)
def record(case: str, activity: str, at: date | None = None, cost: float = 0.0) -> None:
    pass


@app.task
def note(text: str) -> None:
    pass
"""


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def table(self) -> list[list[str]]:
        """The rows of a listing, without its header."""
        return [line.split("\t") for line in self.lines[1:]]

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


Taskmq = Callable[..., Ran]


def opened() -> closing[Store]:
    """The shop's store."""
    return closing(open_store(URL))


def tasks() -> list[TaskInfo]:
    """All tasks of the shop, oldest first."""
    with opened() as store:
        return store.find(Find(limit=10_000)).tasks[::-1]


def kill(queue: str = "default", reason: str = "failed") -> list[str]:
    """Let every ready task of a queue die; returns their ids."""
    with opened() as store:
        claimed = store.reserve(Reserve(queues=[queue], limit=100, worker="w1")).deliveries
        dead = Dead(reason, error="ValueError: no such address", traceback="Traceback: …\nValueError: no such address")
        store.settle(Settle(items=[Settlement(delivery, dead) for delivery in claimed]))
        return [delivery.id for delivery in claimed]
