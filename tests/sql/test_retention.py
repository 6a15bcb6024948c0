"""What has ended slows nothing, and goes in bounded batches when its time is over: records, and keys of both kinds."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest

from taskmq.testing.clock import FakeClock
from taskmq.testing.sql_fill import Server, fill_history, fill_keys, fill_tasks
from taskmq.transport.base import Maintain, Store
from taskmq.transport.registry import open_store
from taskmq.transport.sql.codes import SHARED_BATCH as BATCH
from tests.sql.help import churn
from tests.sql.reads import rows_read
from tests.sql.sides import shared

FINISHED = 100_000
DAY = 86_400_000_000


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    return shared(request.param).server


@pytest.fixture
def place(server: Server) -> str:
    return server.place(f"ended-{uuid.uuid4().hex}")


def greedy(read: dict[str, int], tasks: int) -> dict[str, float]:
    """What was read more than it should for each task that was moved."""
    assert sum(read.values()) > tasks, "nothing was counted"
    return {name: rows / tasks for name, rows in read.items() if rows > 25 * tasks}


def test_work_beside_many_finished_tasks_reads_none_of_them(server: Server, place: str) -> None:
    """Publishing, claiming and settling, with 100,000 finished tasks and their keys, whatever the statistics say."""
    fill_tasks(server, place, "q", 1000)
    fill_history(server, place, "q", FINISHED, 1 << 60)
    rounds, batch = 10, 10

    def work(store: Store) -> None:
        churn(store, rounds, "q", batch=batch)
        churn(store, rounds, "q", batch=batch, keys=uuid.uuid4().hex)
        store.maintain(Maintain())

    assert greedy(rows_read(server, place, work), 2 * rounds * batch) == {}


def test_what_is_over_goes_batch_by_batch(server: Server, place: str) -> None:
    """A round deletes as many as a batch has and says that there is more; what is to stay is not touched, nor read."""
    over, ours = 3 * BATCH, 2 * BATCH  # and the record of the task that made the queue known
    clock = FakeClock()
    fill_history(server, place, "q", FINISHED // 2, clock.now() + DAY - over)
    fill_keys(server, place, "q", ours, clock.now())
    rounds = []

    def tidy(_: Store) -> None:
        clock.advance(86_400)
        with closing(open_store(server.url(place, pool="1"), clock=clock)) as store:
            while not rounds or rounds[-1].more:
                rounds.append(store.maintain(Maintain()))

    read = rows_read(server, place, tidy)
    assert [done.deleted for done in rounds] == [BATCH, BATCH, BATCH, 1]
    assert greedy(read, over + ours) == {}
    ((left, keys),) = server.execute(
        "SELECT (SELECT count(*) FROM taskmq_history WHERE handler='h' AND state=4), count(*) FROM taskmq_keys", place
    )
    assert (left, keys) == (FINISHED // 2 - over, FINISHED // 2 - over)


def test_keys_alone_go_batch_by_batch(server: Server, place: str) -> None:
    """More keys than a batch has are not left for later because no record is over."""
    clock = FakeClock()
    fill_history(server, place, "q", 1, 1 << 60)
    fill_keys(server, place, "q", 2 * BATCH + 1, clock.now())
    clock.advance(1)
    with closing(open_store(server.url(place), clock=clock)) as store:
        assert [store.maintain(Maintain()).more for _ in range(3)] == [True, True, False]
    assert server.execute("SELECT count(*) FROM taskmq_keys", place) == [(1,)]
