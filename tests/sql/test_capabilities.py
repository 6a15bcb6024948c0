"""Claims by capability among many tasks of others: the own ones in order, and nothing walked that is not one's own."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest

from taskmq.message import Delivery
from taskmq.outcome import Ack
from taskmq.testing.sql_fill import Server, fill_tasks
from taskmq.transport.base import Reserve, Settle, Settlement, Store
from taskmq.transport.registry import open_store
from tests.sql.reads import rows_read
from tests.sql.sides import shared

EACH, BATCH = 100_000, 20


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    return shared(request.param).server


@pytest.fixture(scope="module", params=[False, True], ids=["unpartitioned", "partitioned"])
def place(server: Server, request: pytest.FixtureRequest) -> str:
    """200,000 tasks, every other one for ``x`` or ``y``; or as many partitions with one task each."""
    place = server.place(f"mixed-{uuid.uuid4().hex}")
    count = EACH // 5 if request.param else 2 * EACH  # a partition costs two rows and more indexes
    fill_tasks(server, place, "q", count, ("x", "y"), partitioned=request.param)
    return place


def claims(store: Store, handler: str, n: int = BATCH) -> list[Delivery]:
    """What a worker with this handler alone gets; settled at once."""
    params = Reserve(queues=["q"], limit=n, worker=handler, handlers=[(handler, "")])
    held = store.reserve(params).deliveries
    assert all(store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in held])))
    return held


def test_each_worker_gets_its_own_in_order(server: Server, place: str) -> None:
    """Two workers with different handlers on one queue take turns; none of them meets what is the other's."""
    got: dict[str, list[Delivery]] = {"x": [], "y": []}
    with closing(open_store(server.url(place))) as one, closing(open_store(server.url(place))) as other:
        for _ in range(10):
            got["x"] += claims(one, "x")
            got["y"] += claims(other, "y")
    for handler, held in got.items():
        assert {delivery.handler for delivery in held} == {handler}
        numbers = [delivery.token for delivery in held]
        assert numbers == list(range(numbers[0], numbers[0] + 2 * len(held), 2)), "every other one, and none left out"


def test_foreign_tasks_ahead_are_not_read(server: Server, place: str) -> None:
    """A worker whose tasks stand behind all of another's reads a few rows for each of its own."""
    fill_tasks(server, place, "q", 200, ("z",), partitioned=_partitioned(server, place))
    rounds = 5
    read = rows_read(server, place, lambda store: [claims(store, "z") for _ in range(rounds)])
    greedy = {name: rows / (rounds * BATCH) for name, rows in read.items() if rows > 25 * rounds * BATCH}
    assert greedy == {}, "rows read for each task that was claimed"
    assert sum(read.values()) > rounds * BATCH, "nothing was counted"


def _partitioned(server: Server, place: str) -> bool:
    return bool(server.execute("SELECT 1 FROM taskmq_flows LIMIT 1", place))
