"""The commands on a Redis server, with scripts and without: what operators see and do there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmq.message import Delivery
from taskmq.outcome import Dead, Outcome
from taskmq.testing.servers import redis_server
from taskmq.transport.base import Reserve, Settle, Settlement
from taskmq.transport.registry import open_store
from tests.cli.project import Ran, Taskmq

SHOP = """
from taskmq import App, QueueConfig, Retry
app = App({url!r}, queues={{"mail": QueueConfig(weight=3), "cases": QueueConfig(on_dead="hold")}})

@app.task(queue="mail")
def send(to: str, n: int = 1) -> str:
    return to * n

@app.task(queue="cases", retry=Retry(max_attempts=1))
def record(case: int) -> None:
    raise ValueError(f"no case {{case}}")
"""


class Shop:
    """A project whose app has its tasks in Redis."""

    def __init__(self, run: Taskmq, url: str) -> None:
        self._run = run
        self.store = open_store(url)

    def __call__(self, *words: str) -> Ran:
        ran = self._run(*words, "--app", "shop:app")
        assert ran.code in (0, 1, 4), ran.err
        return ran

    def put(self, handler: str, args: str, *options: str) -> str:
        return self("enqueue", handler, "--args", args, *options).out.strip()

    def claim(self, queue: str) -> Delivery:
        (delivery,) = self.store.reserve(Reserve(queues=[queue], limit=1, worker="w1")).deliveries
        return delivery

    def end(self, queue: str, outcome: Outcome) -> None:
        assert self.store.settle(Settle(items=[Settlement(self.claim(queue), outcome)])) == [True]


@pytest.fixture(params=["on", "off"])
def shop(request: pytest.FixtureRequest, taskmq: Taskmq, project: Path) -> Iterator[Shop]:
    url = redis_server("redis").url(f"{project.name}:", lua=request.param)
    (project / "shop.py").write_text(SHOP.format(url=url))
    shop = Shop(taskmq, url)
    yield shop
    shop.store.flush()
    shop.store.close()


def rows(ran: Ran) -> dict[str, list[str]]:
    """A listing's rows by their first word, up to the first empty line."""
    table: dict[str, list[str]] = {}
    for line in ran.lines[1:]:
        if not line:
            break
        name, *rest = line.split("\t")
        table[name] = rest
    return table


def test_status_counts_by_state_and_priority(shop: Shop) -> None:
    """``status`` shows what is ready, due later, running and dead; --by-priority splits what is ready."""
    for options in ((), ("--priority", "9"), ("--priority", "3", "--partition", "!a b:c"), ("--delay", "1h")):
        shop.put("shop.send", '["a"]', *options)
    shop.put("shop.record", "[1]")
    shop.end("cases", Dead("failed", error="ValueError: no case 1"))
    shop.claim("mail")
    status = rows(shop("status"))
    assert [status[queue][:5] for queue in ("mail", "cases")] == [["2", "1", "1", "0", "0"], ["0", "0", "0", "0", "1"]]
    assert status["mail"][6:] == ["3", "strict", "open"]
    by_priority = rows(shop("status", "--by-priority"))
    assert by_priority["mail"] == ["2", *("0",) * 6, "1", "0", "0", "1"]


def test_a_queue_is_paused_configured_purged_and_deleted(shop: Shop) -> None:
    """``queue`` steers the store, and ``why`` names the gate that holds a task back."""
    first, second = (shop.put("shop.send", args) for args in ('["a"]', '["b"]'))
    shop("queue", "pause", "mail")
    assert "queue mail is paused" in shop("why", first).out
    assert not shop.store.reserve(Reserve(queues=["mail"], limit=1, worker="w1")).deliveries
    shop("queue", "resume", "mail")
    shop("queue", "configure", "mail", "--weight", "7", "--rate", "5/s", "--max-queued", "2", "--max-running", "1")
    config = shop.store.stats(["mail"])[0].config
    assert (config.weight, config.max_queued, config.max_running) == (7, 2, 1)
    assert shop.claim("mail").id == first
    assert "max_running" in shop("why", second).out
    shop.put("shop.send", '["c"]')
    assert "max_queued" in shop("enqueue", "shop.send", "--args", '["d"]').err
    assert "cancelled 2 tasks" in shop("queue", "purge", "mail", "--yes").out
    assert shop("queue", "delete", "cases", "--yes").code == 0
    assert [stats.name for stats in shop.store.stats()] == ["mail"]


def test_a_held_partition_is_listed_explained_and_released(shop: Shop) -> None:
    """``partition`` and ``doctor`` show where a dead task holds a partition; released, it goes on."""
    dead, behind = (shop.put("shop.record", args, "--partition", "!acct 1:{x}") for args in ("[1]", "[2]"))
    shop.end("cases", Dead("failed", error="ValueError: no case 1"))
    (listed,) = shop("partition", "list", "cases", "--stopped", "--json").json
    assert (listed["code"], listed["waiting"], listed["held_by"]) == ("!acct 1:{x}", 1, dead)
    assert f"held by the dead task {dead}" in shop("why", behind).out
    doctor = shop("doctor")
    assert doctor.code == 1
    assert "partition !acct 1:{x} of queue cases is stopped at a dead task, with 1 tasks behind" in doctor.out
    assert {"durability", "partitions"} <= {line.split("\t")[1] for line in doctor.lines[1:]}
    shop("partition", "release", "cases", "!acct 1:{x}")
    assert shop.claim("cases").id == dead
    assert "held by worker w1" in shop("why", behind).out
    assert "w1" in shop("partition", "info", "cases", "!acct 1:{x}").out


def test_dead_letters_are_listed_shown_replayed_and_purged(shop: Shop) -> None:
    """``dead`` pages through what failed for good; a replay has a new budget, also in another queue."""
    ids = [shop.put("shop.send", f'["{name}"]') for name in "abc"]
    for _ in ids:
        shop.end("mail", Dead("failed", error="ValueError: no such address", traceback="Traceback: …"))
    assert [row["id"] for row in shop("dead", "list", "--queue", "mail", "--json").json] == ids[::-1]
    assert "no such address" in shop("dead", "show", ids[0]).out
    shop("dead", "replay", ids[0])
    shop("dead", "replay", ids[1], "--to", "second")
    assert shop.claim("mail").id == ids[0]
    assert shop.claim("second").id == ids[1]
    shop("dead", "purge", "--all", "--yes")
    assert shop("dead", "list", "--json").json == []
    assert shop.store.get([ids[2]]) == [None]


def test_a_worker_runs_what_is_enqueued_and_shows_in_status(shop: Shop) -> None:
    """``taskmq worker`` on Redis: results are there, it is listed while it lives, and SIGTERM ends it with code 0."""
    ids = [shop.put("shop.send", f'["{name}", 2]') for name in "ab"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "taskmq", "worker", "shop:app", "--concurrency", "2", "--name", "mine"]
    worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert all(shop.store.watch(task_id, 30) for task_id in ids)
        assert "mine" in shop("status").out
        assert "it ended SUCCEEDED" in shop("why", ids[0]).out
        (shown,) = shop("task", "show", ids[1], "--json").json
        assert shown["result"] == "bb"
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert "mine" not in shop("status").out


def test_rows_are_enqueued_in_batches_and_only_once(shop: Shop) -> None:
    """``enqueue --from`` sends a file's rows; sent again, each row is there once."""
    Path("rows.csv").write_text("to,n\n" + "".join(f"a{number},2\n" for number in range(30)))
    for _ in range(2):
        assert shop("enqueue", "shop.send", "--from", "rows.csv").code == 0
    assert shop.store.stats(["mail"])[0].ready == 30
