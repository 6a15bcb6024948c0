"""Random programs over all verbs: every store gives the answers of the memory model."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from taskmq.testing.clock import FakeClock
from taskmq.testing.machine import machine
from taskmq.transport.base import Store
from taskmq.transport.redis.transport import RedisTransport
from taskmq.transport.registry import open_store
from tests.stores import STORES

EXAMPLES = os.environ.get("TASKMQ_EXAMPLES")
"""How many programs to try; unset, the same every time, so that a failure is the change's and not the day's."""


def test_sqlite_answers_like_the_memory_model() -> None:
    """Whatever happens to a queue, SQLite and memory agree about every answer, task, queue and partition."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        template = Path(folder) / "template.db"
        open_store(f"sqlite:///{template}?synchronous=off").close()
        count = iter(range(10**9))

        def opened(clock: FakeClock) -> Store:
            path = Path(folder) / f"{next(count)}.db"
            shutil.copy(template, path)
            return open_store(f"sqlite:///{path}?synchronous=off", clock=clock)

        _compare(opened)


@pytest.mark.parametrize(("name", "examples"), [("postgresql", 60), ("postgresql-new", 20), ("mariadb", 15)])
def test_a_sql_server_answers_like_the_memory_model(name: str, examples: int) -> None:
    """Whatever happens to a queue, the server and memory agree about every answer, task, queue and partition."""
    count = iter(range(10**9))
    _compare(lambda clock: STORES[name](clock, Path(f"program{next(count)}")), examples)


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        *(("redis", 150), ("valkey", 150), ("redis-nolua", 60), ("valkey-nolua", 60)),
        *(("redis-cluster", 60), ("redis-cluster-nolua", 25)),
    ],
)
def test_redis_answers_like_the_memory_model(name: str, examples: int) -> None:
    """Whatever happens to a queue, the scripts and memory agree about every answer, task, queue and partition."""

    def fresh(clock: FakeClock) -> Store:
        store = STORES[name](clock, Path("random"))
        store.flush()
        return store

    _compare(fresh, examples, apart="cluster" in name)


def test_claims_from_many_queues_answer_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that looks only at queues which have something finds what one that looks at all finds."""
    monkeypatch.setattr(RedisTransport, "many", 1)
    test_redis_answers_like_the_memory_model("redis", 100)


def _compare(opener: Callable[[FakeClock], Store], examples: int = 200, *, apart: bool = False) -> None:
    run_state_machine_as_test(
        machine(opener, apart=apart),
        settings=settings(
            max_examples=int(EXAMPLES or examples),
            stateful_step_count=40,
            deadline=None,
            derandomize=EXAMPLES is None,
            suppress_health_check=list(HealthCheck),  # they judge the machine's speed
        ),
    )
