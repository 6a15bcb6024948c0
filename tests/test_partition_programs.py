"""Partitions at rest: every store follows the memory model through random programs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from taskmq.testing.clock import FakeClock
from taskmq.transport.memory import MemoryTransport
from tests.partition_programs import Program
from tests.stores import STORES

PROGRAMS = [
    *(("sqlite", 40), ("postgresql", 8), ("postgresql-new", 4), ("mariadb", 2)),
    *(("redis", 80), ("redis-plain", 20), ("redis-nolua", 20), ("valkey", 40), ("valkey-nolua", 10)),
    *(("redis-cluster", 15), ("redis-cluster-nolua", 5)),
]


@pytest.mark.parametrize(("name", "programs"), PROGRAMS)
def test_partitions_are_claimed_like_the_memory_model(name: str, programs: int, tmp_path: Path) -> None:
    """Order, runs, leases, counts and partitions are the model's, whatever way the store takes."""
    for seed in range(programs):
        clock = FakeClock()
        place = tmp_path / uuid.uuid4().hex
        place.mkdir()
        store = STORES[name](clock, place)
        try:
            Program(seed, MemoryTransport(clock=clock), store, clock).run(40)
        except AssertionError as error:
            raise AssertionError(f"program {seed}: {error}") from None
        finally:
            store.close()
