"""Ours."""

# mypy: ignore-errors
from __future__ import annotations

from peer import URL, mark, threads

from taskmq import App

app = App(URL)


@app.task(name="noop")
def noop(value: int | str) -> None:
    mark(value)


def publish():
    threads(noop.enqueue, lambda values: app.enqueue_many([noop.message(value) for value in values]))
