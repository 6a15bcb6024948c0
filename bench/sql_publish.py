"""PostgreSQL and MariaDB: a publish of 100 through the store against the bare multi-row insert of the same columns.

python -m bench.sql_publish [postgresql|postgresql-new|mariadb] [ROUNDS]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.common import BODY, alternate, figure, fill, message, report, seconds
from bench.sql_place import connect, run, url_of
from taskmq.transport.base import Publish
from taskmq.transport.registry import open_store

BATCH = 100
COLUMNS = "seq, id, queue_id, state, lane, priority, available_at, max_attempts, created_at, handler, handler_id, body"


def bare_insert(url: str) -> Iterator[float]:
    """Times of a multi-row INSERT, a transaction of its own; its rows belong to no queue."""
    row = f"({', '.join(['%s'] * 12)})"
    statement = f"INSERT INTO taskmq_tasks({COLUMNS}) VALUES {', '.join([row] * BATCH)}"
    connection = connect(url)
    execute = connection.cursor().execute if url.startswith("mariadb") else connection.execute
    seq = 1 << 50
    while True:
        values: list[Any] = []
        for _ in range(BATCH):
            seq += 1
            values += [seq, f"{seq:032x}", 999, 1, 1 << 55, 0, 1, 3, 1, "h", 999, BODY.decode()]
        yield seconds(lambda values=values: execute(statement, values))  # type: ignore[misc]


def measure(server: str, rounds: int) -> None:
    """Print the batch's ratio, and what a publish of one takes."""
    url = url_of(server, "publish")
    store = open_store(url)
    fill(store, 1, lambda i: message())

    def publish(count: int) -> float:
        batch = [message() for _ in range(count)]
        return seconds(lambda: store.publish(Publish(messages=batch)))

    bare = bare_insert(url)
    sides = [lambda: publish(BATCH), lambda: publish(1), lambda: next(bare)]
    alternate(sides, 20)
    many, single, plain = alternate(sides, rounds)
    rates = (f"{BATCH / many:,.0f}/s", f"{BATCH / plain:,.0f}/s")
    report(f"{server}, publish of {BATCH} / bare insert", *rates, plain / many, ">= 0.6")
    figure(f"{server}, publish of 1, p50", f"{single * 1e3:.2f} ms", single * 1e3, "-")
    store.close()


if __name__ == "__main__":
    run(measure, 300)
