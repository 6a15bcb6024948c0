"""Submits: in batches of 100 with 16 clients beside the bare multi-row insert, and one by one beside an echo."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from bench.common import BODY, report
from bench.server.echo import echo
from bench.server.served import Served
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.transport.base import Publish

CLIENTS, BATCH = 16, 100
COLUMNS = (
    *("seq", "id", "queue_id", "state", "lane", "priority", "aging_us", "available_at", "max_attempts", "created_at"),
    *("handler", "handler_id", "body", "idem_key", "digest"),
)
_seqs = itertools.count(1 << 50)


def together(clients: int, work: Callable[[int], None]) -> float:
    """Seconds until all clients have done their work."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def batches(at: Served, rounds: int) -> None:
    """Rate of batches over HTTP, of the store alone with keys, and of the bare insert into the same table."""
    run = new_id()[:12]
    headers = {"Authorization": f"Bearer {at.token}", "Content-Type": "application/json"}
    bodies = [[_body(f"{run}-{i}-{b}") for b in range(rounds)] for i in range(CLIENTS)]

    def over_http(i: int) -> None:
        line = http.client.HTTPConnection(urlsplit(at.url).netloc)
        for body in bodies[i]:
            line.request("POST", "/v1/tasks:batch", body, headers)
            answer = line.getresponse()
            content = answer.read()
            assert answer.status == 200, content[:300]
        line.close()

    def alone(i: int) -> None:
        for b in range(rounds):
            messages = [_message(f"{run}-{i}-{b}-{n}") for n in range(BATCH)]
            at.store().publish(Publish(messages=messages))

    there = CLIENTS * rounds * BATCH
    http_rate = there / together(CLIENTS, over_http)
    store_rate = there / together(CLIENTS, alone)
    bare_rate = there / together(CLIENTS, _bare(at, rounds))
    what = f"{at.kind}, submit in batches of {BATCH}, {CLIENTS} clients"
    report(f"{what} / bare insert", f"{http_rate:,.0f}/s", f"{bare_rate:,.0f}/s", http_rate / bare_rate, ">= 0.5")
    report(f"{what} / library", f"{http_rate:,.0f}/s", f"{store_rate:,.0f}/s", http_rate / store_rate, "-")


def _body(key: str) -> bytes:
    task = {"queue": "initial", "handler": "bench", "payload": "x" * 96}
    return json.dumps({"items": [{**task, "idempotency_key": f"{key}-{n}"} for n in range(BATCH)]}).encode()


def _message(key: str) -> Message:
    return Message(id=new_id(), queue="q", handler="bench", body=BODY, key=key)


def _bare(at: Served, rounds: int) -> Callable[[int], None]:
    """What one client does: a multi-row INSERT of the usual columns, each in a transaction of its own."""
    mark = "?" if at.kind == "sqlite" else "%s"
    row = f"({', '.join([mark] * len(COLUMNS))})"
    statement = f"INSERT INTO taskmq_tasks({', '.join(COLUMNS)}) VALUES {', '.join([row] * BATCH)}"

    def work(_: int) -> None:
        connection: Any
        if at.kind == "sqlite":
            import sqlite3

            from taskmq.transport.sql.sqlite.connection import Settings

            connection = sqlite3.connect(Settings(at.database).path, timeout=60, isolation_level=None)
            connection.execute("PRAGMA synchronous=full")
        else:
            import psycopg

            from taskmq.transport.sql.postgresql.settings import Settings as Server

            connection = psycopg.connect(**Server(at.database).parameters, autocommit=True)  # type: ignore[arg-type]
        for _ in range(rounds):
            values: list[Any] = []
            for seq in itertools.islice(_seqs, BATCH):
                key = f"{seq:032x}"
                values += [seq, key, 999, 1, -999, 0, 30_000_000, seq, 3, seq, "bench", 999, BODY.decode(), key, key]
            connection.execute(statement, values)
        connection.close()

    return work


def singles(at: Served, count: int) -> None:
    """Single submits of one client and of sixteen, and the bare framework's echo with the same clients.

    Each client has a token of its own, because a token may send 200 requests a second.
    """
    run = new_id()[:12]
    body = json.dumps({"queue": "initial", "handler": "bench", "payload": "x" * 96}).encode()
    tokens = [at.new_token() for _ in range(CLIENTS)]

    def submit(url: str, path: str, i: int, each: int) -> None:
        line = http.client.HTTPConnection(urlsplit(url).netloc)
        for n in range(each):
            key = {"Idempotency-Key": f"{run}-{each}-{i}-{n}"}
            headers = {"Authorization": f"Bearer {tokens[i]}", "Content-Type": "application/json", **key}
            line.request("POST", path, body, headers)
            answer = line.getresponse()
            answer.read()
            assert answer.status in (200, 201), answer.status
        line.close()

    with echo() as url:
        for clients in (1, CLIENTS):
            each = min(count // clients, 400)
            ours = each * clients / together(clients, partial(submit, at.url, "/v1/tasks", each=each))
            bare = each * clients / together(clients, partial(submit, url, "/echo", each=each))
            what = f"{at.kind}, single submits, {clients} clients / echo of the framework"
            report(what, f"{ours:,.0f}/s", f"{bare:,.0f}/s", ours / bare, "-")
