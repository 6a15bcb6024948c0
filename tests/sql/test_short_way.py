"""The short way (transport/sql/short.py): what it must not wait for, and whom it must not meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from taskmq.outcome import Ack, Retry
from taskmq.queue import QueueConfig
from taskmq.testing.sql_servers import PostgresServer
from taskmq.transport.base import Maintain, Publish, Reserve, Settle, Settlement, Store
from taskmq.transport.registry import open_store
from tests.sql.help import acknowledge, claim, message, publish, work_off


@contextmanager
def locked(server: PostgresServer, url: str, table: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Somebody has locked all rows of a table."""
    schema = url.rpartition("search_path%3D")[2]
    with psycopg.connect(server.dsn(), options=f"-c search_path={schema}") as blocker:
        blocker.execute(f"SELECT 1 FROM {table} FOR UPDATE")
        yield blocker


def test_a_success_waits_for_no_claim(server: PostgresServer, url: str, store: Store) -> None:
    """While somebody holds the queue, tasks are acknowledged."""
    publish(store, 3)
    held = claim(store)
    with locked(server, url, "taskmq_queues"):
        assert acknowledge(store, held) == [True] * 3
    assert store.stats(["q"])[0].running == 0


def test_a_reaper_leaves_what_ends_just_now(server: PostgresServer, url: str, store: Store) -> None:
    """A task whose lease is over is not reaped while somebody else has its row."""
    publish(store)
    store.reserve(Reserve(queues=["q"], limit=1, worker="w", lease=1))
    time.sleep(0.01)
    with locked(server, url, "taskmq_tasks"):
        assert store.maintain(Maintain()).reaped == 0
    assert store.maintain(Maintain()).reaped == 1


def test_a_success_after_the_lease_is_refused(store: Store) -> None:
    """Its epoch is old once the task has been taken by somebody else."""
    publish(store)
    late = store.reserve(Reserve(queues=["q"], limit=1, worker="w", lease=1)).deliveries
    time.sleep(0.01)
    again = claim(store)
    assert acknowledge(store, late) == [False]
    assert acknowledge(store, again) == [True]


def test_a_success_counts_once(store: Store) -> None:
    """The same settlement twice in one call is carried out once."""
    publish(store)
    (delivery,) = claim(store)
    assert acknowledge(store, [delivery, delivery]) == [True, False]
    assert store.stats(["q"])[0].running == 0


def test_what_does_not_fit_goes_the_long_way(store: Store) -> None:
    """Plain tasks beside one with a key, and one that is retried, in one exchange with a claim."""
    store.publish(Publish(messages=[message(key='a "quoted" {key}, with \\ all of it'), message(), message()]))
    held = claim(store, 2)
    retry = Settlement(held[1], Retry(delay=0))
    results, reserved = store.settle_and_reserve(
        Settle(items=[Settlement(held[0], Ack()), retry]), Reserve(queues=["q"], limit=5, worker="w")
    )
    assert results == [True, True]
    assert len(reserved.deliveries) == 2
    keyed = message(key='a "quoted" {key}, with \\ all of it')
    assert store.publish(Publish(messages=[keyed]))[0].duplicate
    assert acknowledge(store, reserved.deliveries) == [True, True]


def test_a_partition_turns_the_queue_from_the_short_way(store: Store) -> None:
    """Plain claims, then a partition beside them, then plain again: nothing is lost or taken twice."""
    publish(store, 5)
    first = claim(store, 2)
    store.publish(Publish(messages=[message(partition="!p"), message(partition="!p")]))
    publish(store, 2)
    rest = claim(store, 10)
    assert len({delivery.id for delivery in [*first, *rest]}) == len(first) + len(rest) == 2 + 7
    assert all(acknowledge(store, [*first, *rest]))
    publish(store, 2)
    assert len(work_off(store)) == 2


@pytest.mark.parametrize("claimers", [6])
def test_a_limit_holds_on_the_short_way(url: str, claimers: int) -> None:
    """Six claimers of a queue with ``max_running=3`` never hold more, and its counts come out even."""
    store = open_store(url)
    store.configure_queues({"q": QueueConfig(max_running=3)})
    publish(store, 150)
    held, most, done, guard = 0, 0, 0, threading.Lock()

    def work() -> None:
        nonlocal held, most, done
        own = open_store(url)
        while done < 150:
            deliveries = claim(own, 2)
            with guard:
                held += len(deliveries)
                most = max(most, held)
            with guard:
                held -= len(deliveries)
            done += len(deliveries)
            assert all(acknowledge(own, deliveries))
        own.close()

    threads = [threading.Thread(target=work) for _ in range(claimers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = store.stats(["q"])[0]
    assert (most <= 3, done, stats.running, stats.ready) == (True, 150, 0, 0)
    store.close()
