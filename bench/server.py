"""The server on SQLite: submits beside the store alone and the bare framework, dispatch, latency, memory.

A connection may start four claims a second, so one worker moves at most four batches a second, however fast all is.

One process serves, this one asks; both sides of each figure in one run. python -m bench.server
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from websockets.sync.client import ClientConnection, connect

from taskmq.client import Client, Worker
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.outcome import Ack
from taskmq.transport.base import Publish, Reserve, Settle, Settlement
from taskmq.transport.registry import open_store
from taskmq.wire.codes import SUBPROTOCOL

CLIENTS, BATCH, TASKS = 16, 100, 8000
PLACE = ("--application", "a", "--namespace", "n", "--environment", "e", "--queue", "initial")


@contextmanager
def served() -> Iterator[tuple[str, str, psutil.Process, Path]]:
    """A server in a process of its own: its URL, credentials, process and folder."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        env = {**os.environ, "TASKMQ_DATABASE_URL": f"sqlite:///{path / 't.db'}?synchronous=normal"}
        taskmq = [sys.executable, "-m", "taskmq"]
        subprocess.run([*taskmq, "migrate", "up"], env=env, check=True, capture_output=True)
        credentials = str(path / "c.json")
        bootstrap = [*taskmq, "admin", "bootstrap", *PLACE, "--worker-access", "--output", credentials]
        subprocess.run(bootstrap, env=env, check=True, capture_output=True)
        command = [*taskmq, "server", "--http-addr", "127.0.0.1:0"]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().partition("=")[2], credentials, psutil.Process(process.pid), path
        finally:
            process.terminate()
            process.wait(20)
            process.stdout.close()


def together(work: Callable[[int], None]) -> float:
    """Seconds until all clients are done."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def submits(url: str, credentials: str, path: Path) -> None:
    each = TASKS // CLIENTS // BATCH

    def over_http(i: int) -> None:
        with Client(url, credentials, timeout=60) as api:
            for b in range(each):
                api.submit_tasks([{"key": f"{i}-{b}-{n}", "queue": "initial", "handler": "h"} for n in range(BATCH)])

    store = open_store(f"sqlite:///{path / 'bare.db'}?synchronous=normal")

    def bare(i: int) -> None:
        for b in range(each):
            messages = [
                Message(id=new_id(), queue="q", handler="h", body=b"{}", key=f"{i}-{b}-{n}") for n in range(BATCH)
            ]
            store.publish(Publish(messages=messages))

    there = each * BATCH * CLIENTS
    library, http = there / together(bare), there / together(over_http)
    share = f"{http / library:.0%}"
    print(f"submit in batches of {BATCH}, {CLIENTS} clients: {http:,.0f}/s, store alone {library:,.0f}/s: {share}")
    with Client(url, credentials) as api:
        began = time.perf_counter()
        for i in range(300):
            api.submit_task(f"single-{i}", queue="initial", handler="single")
        single = 300 / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(300):
            api._http.get(f"{url}/healthz")
        print(
            f"single submits, one client: {single:,.0f}/s; bare framework {300 / (time.perf_counter() - began):,.0f}/s"
        )
    for n in (1, 10):
        began, count = time.perf_counter(), 0
        while count < 1000:
            found = store.reserve(Reserve(queues=["q"], limit=n, worker="w")).deliveries
            store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in found]))
            count += len(found)
        alone = count / (time.perf_counter() - began)
        rate = over_socket(url, credentials, n, 1000 if n > 1 else 40)
        print(f"one worker over WebSocket, batch {n}: {rate:,.0f}/s, store alone {alone:,.0f}/s: {rate / alone:.0%}")
    store.close()


def over_socket(url: str, credentials: str, n: int, count: int) -> float:
    """Tasks a second through claim, start and finish in batches of n."""
    with socket_of(url, credentials) as link:
        hello(link, n)
        ref, done = 0, 0
        began = time.perf_counter()
        while done < count:
            tasks = ask(link, ref := ref + 1, "claim", queues=["initial"], n=n).get("tasks", [])
            items = [{"task_id": task["task_id"], "epoch": task["epoch"]} for task in tasks]
            if items:
                ask(link, ref := ref + 1, "start", items=items)
                ask(link, ref := ref + 1, "finish", items=[{**item, "outcome": "success"} for item in items])
                done += len(items)
        return done / (time.perf_counter() - began)


@contextmanager
def socket_of(url: str, credentials: str) -> Iterator[ClientConnection]:
    token = json.loads(Path(credentials).read_text())["token"]
    headers = {"Authorization": f"Bearer {token}"}
    target = f"{url.replace('http', 'ws', 1)}/v1/workers/connect"
    with connect(target, additional_headers=headers, subprotocols=[SUBPROTOCOL], compression=None) as link:  # type: ignore[list-item]
        yield link


def hello(link: ClientConnection, capacity: int) -> None:
    capabilities = [{"handler": "h"}]
    message = {"type": "hello", "protocol": 1, "worker_id": "w", "capabilities": capabilities, "capacity": capacity}
    link.send(json.dumps(message))
    link.recv()


def ask(link: ClientConnection, ref: int, kind: str, **fields: Any) -> dict[str, Any]:
    link.send(json.dumps({"type": kind, "ref": ref, **fields}))
    answer: dict[str, Any] = json.loads(link.recv())
    return answer


def latency(url: str, credentials: str) -> None:
    with Client(url, credentials) as api:
        started: dict[str, float] = {}
        heard = threading.Event()
        worker = Worker(api, ["initial"])

        @worker.handler("now")
        def now(execution: Any) -> None:
            started[execution.task.task_id] = time.perf_counter()
            heard.set()

        worker.start()
        delays = []
        for i in range(50):
            heard.clear()
            time.sleep(0.6)  # the worker is idle, and its budget of four claims a second is not used up
            began = time.perf_counter()
            task = api.submit_task(f"latency-{i}", queue="initial", handler="now")
            heard.wait(5)
            delays.append((started[task.task_id] - began) * 1000)
        worker.drain(5)
        worker.stop()
    cuts = statistics.quantiles(delays, n=100)
    print(f"submit → start on an idle worker: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms")


def memory(url: str, credentials: str, process: psutil.Process) -> None:
    before = process.memory_info().rss
    contexts = [socket_of(url, credentials) for _ in range(100)]
    for context in contexts:
        hello(context.__enter__(), 1)
    time.sleep(1)
    print(f"memory of an idle worker connection: {(process.memory_info().rss - before) / 100 / 1024:.0f} KiB")
    for context in contexts:
        context.__exit__(None, None, None)


def main() -> None:
    with served() as (url, credentials, process, path):
        memory(url, credentials, process)
        latency(url, credentials)
        submits(url, credentials, path)


if __name__ == "__main__":
    main()
