"""A node on PostgreSQL and on MariaDB: locks that others hold, fair turns over wss://, the example."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from websockets.asyncio.client import ClientConnection, connect

from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.server.claim_pool import ClaimPool, Start
from taskmq.transport.base import Publish
from taskmq.wire.codes import SUBPROTOCOL
from tests.server.kit import Running, Socket, running, token
from tests.server.places import database
from tests.server.test_command_line import ROOT

LINES = "submitted_priorities=0,9,4 executed_priorities=9,4,0\ncompleted=3 attempts_per_task=1 worker_drained=true\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Files of a certificate for this machine, and of its key."""
    path = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
         "key.pem", "-out", "cert.pem", "-days", "1", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1"],
        cwd=path, check=True, capture_output=True,
    )  # fmt: skip
    return str(path / "cert.pem"), str(path / "key.pem")


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("node")
    with running(path, database_url=database(request.param, path), request_rate=1e6, request_burst=10**6) as made:
        yield made


@pytest.fixture
def secure(own: Running, tmp_path: Path, certificate: tuple[str, str]) -> Iterator[Running]:
    """Another node over the same database, with TLS. The blocking client's two threads do not share a TLS line well."""
    where, (cert, key) = own.settings.database_url, certificate
    with running(tmp_path, database_url=where, tls_cert=cert, tls_key=key, node="n2", request_rate=1e6) as made:
        yield made


@contextmanager
def locked(own: Running, *statements: str) -> Iterator[None]:
    """Somebody else's transaction, which holds what these statements lock."""
    with own.database.engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
        try:
            yield
        finally:
            connection.rollback()
            if connection.dialect.name != "postgresql":
                connection.execute(text("UNLOCK TABLES"))
                connection.rollback()


def queue_lock(own: Running, queue_id: str) -> str:
    """What claims, starts and finishes of a queue lock, too."""
    return f"SELECT * FROM taskmq_queues WHERE name='{queue_id}' AND namespace='{own.environment}' FOR UPDATE"


def test_renewals_do_not_wait_for_a_lock_on_the_line(own: Running) -> None:
    """What holds up every claim, start and finish of a queue holds up no renewal, not even of started tasks."""
    with Socket(own) as worker, Socket(own) as other:
        worker.hello()
        other.hello()
        own.submit("k")
        own.submit("l")
        task = worker.take()
        with locked(own, queue_lock(own, task["queue_id"])):
            other.say(type="claim", ref=1, queues=["initial"], n=1)  # hangs
            worker.say(type="finish", ref=10, outcome="success", **token(task))
            worker.ref = 10
            began = time.monotonic()
            assert worker.ask("renew", items=[token(task)])["lost"] == []
            assert time.monotonic() - began < 1.0
        assert other.answer(1)["type"] == "dispatch"
        assert worker.stray[-1:] == [] or worker.stray[-1]["type"] == "finished"


def test_a_lock_on_the_tasks_table_delays_no_heartbeat(own: Running) -> None:
    postgres = own.database.engine.dialect.name == "postgresql"
    lock = "LOCK TABLE taskmq_tasks IN ACCESS EXCLUSIVE MODE" if postgres else "LOCK TABLES taskmq_tasks WRITE"
    with Socket(own) as worker:
        worker.hello()
        own.submit("k")
        task = worker.take()
        with locked(own, lock):
            worker.say(type="renew", ref=10, items=[token(task)])  # needs the table
            worker.ref = 10
            began = time.monotonic()
            for _ in range(5):
                assert worker.ask("renew", items=[])["type"] == "renewed"
            assert own.http.get("/healthz").status_code == 200
            assert time.monotonic() - began < 1.0
        assert worker.answer(10)["lost"] == []
        assert worker.ask("finish", **token(task), outcome="success")["state"] == "SUCCEEDED"


def test_a_start_that_meets_a_reaper_is_too_late(own: Running) -> None:
    """Starts of plain tasks do not take their queue's lock on PostgreSQL; the row's own lock keeps the two apart."""
    if own.database.engine.dialect.name != "postgresql":
        pytest.skip("starts take the queue's lock here, as reapers do")
    with Socket(own) as worker:
        worker.hello()
        own.submit("k")
        (task,) = worker.claim()
        back = text("UPDATE taskmq_tasks SET state=1, worker=NULL, due_at=NULL WHERE id=:id")
        with own.database.write() as connection:
            connection.execute(back, {"id": task["task_id"]})
            worker.say(type="start", ref=10, **token(task))
            with pytest.raises(TimeoutError):
                worker.hear(0.3)
        assert worker.hear()["code"] == "LEASE_LOST"
    (info,) = own.store.get([task["task_id"]])
    assert info is not None
    assert (info.state, info.started_at) == ("QUEUED", None)


# ── turns ──


def applications(own: Running, queues: dict[str, int], tasks: int) -> dict[str, tuple[str, list[str], str]]:
    """For each application its token, queues and id, every queue with tasks."""
    found = {}
    for name, count in queues.items():
        secret, environment = own.grant(application=name, namespace=f"ns-{name}", environment=new_id())
        with own.client(secret) as http:
            names = [f"{name}{i}" for i in range(count)]
            ids = [http.post("/v1/queues", json={"name": n}).json()["data"]["queue_id"] for n in names]
        store = own.application.node.stores.of(environment)
        for queue_id in ids:
            each = range(max(10, tasks // count))
            store.publish(Publish(messages=[message(queue_id) for _ in each]))
        found[name] = (secret, names, environment)
    return found


def message(queue_id: str) -> Message:
    return Message(id=new_id(), queue=queue_id, handler="h", version="v1", body=b'{"args":[null]}')


async def worker(own: Running, secret: str, name: str) -> ClientConnection:
    headers = {"Authorization": f"Bearer {secret}"}
    link = await connect(
        f"{own.url.replace('http', 'ws', 1)}/v1/workers/connect", additional_headers=headers,
        subprotocols=[SUBPROTOCOL], compression=None, ssl=own.trusted, open_timeout=30,  # type: ignore[list-item]
    )  # fmt: skip
    hello = {"type": "hello", "protocol": 1, "worker_id": name, "capabilities": [{"handler": "h"}], "capacity": 1000}
    await link.send(json.dumps(hello))
    welcome = json.loads(await link.recv())
    assert welcome["type"] == "welcome", welcome
    return link


async def claim_on(link: ClientConnection, queue: str, until: asyncio.Event) -> None:
    """Claim again at once, as long as there is something."""
    ref = 0
    while not until.is_set():
        ref += 1
        await link.send(json.dumps({"type": "claim", "ref": ref, "queues": [queue], "n": 1}))
        while json.loads(await link.recv()).get("ref") != ref:
            pass


class Watched(ClaimPool):
    """A pool that tells whose statements it starts, and who else could have had the turn."""

    __slots__ = ("turns",)

    def _start(self, request: Any) -> Start:
        line = self._line.items()
        able = {app for app, lanes in line if any(any(map(self._has_budget, lane)) for lane in lanes.values())}
        self.turns.append((request.app, able))
        return ClaimPool._start(self, request)


def watch(own: Running, slots: int) -> Watched:
    """Put a pool in place whose turns can be seen, while nobody claims."""
    pool = Watched(slots=slots, t0=time.monotonic())
    pool.turns = []
    own.application.node.claims.pool = pool
    return pool


def test_fifty_queues_and_a_hundred_connections_win_no_turns(secure: Running) -> None:
    """One statement at a time: while an application waits, the other one has at most one turn."""
    apps = applications(secure, {"A": 50, "B": 1}, 1000)
    pool = watch(secure, slots=1)

    async def scenario() -> None:
        async with asyncio.timeout(60):
            links = []
            for name, count in (("A", 100), ("B", 20)):
                for start in range(0, count, 20):
                    secret, queues, _ = apps[name]
                    made = await asyncio.gather(*(worker(secure, secret, f"{name}{start + i}") for i in range(20)))
                    links += [(link, queues[(start + i) % len(queues)]) for i, link in enumerate(made)]
            done = asyncio.Event()
            claiming = [asyncio.create_task(claim_on(link, queue, done)) for link, queue in links]
            await asyncio.sleep(2.0)
            done.set()
            await asyncio.gather(*claiming)
            await asyncio.gather(*(link.close() for link, _ in links))

    asyncio.run(scenario())
    for (last, before), (now, able) in pairwise(pool.turns):
        assert now != last or before & able == {now}, "two turns, while the other one waited for both"
    contested = Counter(app for app, able in pool.turns if len(able) == 2)
    assert len(contested) == 2
    fewer, more = sorted(contested.values())
    assert fewer >= 10  # how many there are depends on how fast the machine is
    assert more - fewer <= max(4, more * 0.2), contested


def test_an_application_whose_claims_hang_holds_nobody_back(own: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when more of its claims and finishes have timed out than there are threads."""
    apps = applications(own, {"C": 1, "D": 1}, 100)
    watch(own, slots=4)
    node = own.application.node
    stuck, free = own.seen_by(apps["C"][0], apps["C"][2]), own.seen_by(apps["D"][0], apps["D"][2])
    with stuck.http, free.http, ExitStack() as stack:
        queue_id = stuck.http.get("/v1/queues", params={"name": "C0"}).json()["data"]["items"][0]["queue_id"]
        hanging = [stack.enter_context(Socket(stuck)) for _ in range(10)]
        other = stack.enter_context(Socket(free))
        for socket in (*hanging, other):
            socket.hello()
        (held,) = hanging[0].claim(1, "C0")
        hanging[0].ask("start", **token(held))
        monkeypatch.setattr(node, "settings", replace(node.settings, store_timeout=0.1))
        with locked(stuck, queue_lock(stuck, queue_id)):
            for socket in hanging:
                socket.say(type="claim", ref=10, queues=["C0"], n=1)
                socket.say(type="finish", ref=11, outcome="success", **token(held))
            for socket in hanging:
                assert {socket.hear()["code"], socket.hear()["code"]} <= {"TIMEOUT", "UNAVAILABLE"}
            monkeypatch.undo()
            began = time.monotonic()
            for _ in range(3):
                (task,) = other.claim(1, "D0")
                assert other.ask("start", **token(task))["type"] == "started"
            assert time.monotonic() - began < 3.0
        hanging[0].ref = 20
        assert hanging[0].ask("finish", outcome="success", **token(held))["type"] == "finished"
        (again,) = hanging[0].claim(1, "C0")
        assert again["epoch"] <= 2  # what was taken for nobody has come back


# ── the example ──


def test_the_example_prints_exactly_its_two_lines(own: Running, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps({"format": 1, "token": own.token}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKMQ_")}
    where = {"TASKMQ_URL": own.url, "TASKMQ_CREDENTIALS_FILE": str(file)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples/priority/main.py")],
        env={**kept, "PYTHONPATH": str(ROOT), **where}, capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, LINES, "")
    assert time.monotonic() - began < 25


def test_every_text_is_stored_and_a_deleted_queue_stays_closed(own: Running) -> None:
    text = "😀\0"
    with Socket(own) as worker:
        assert worker.hello(sdk=text)["type"] == "welcome"
        made = own.submit("a", max_attempts=1)
        task = worker.take()
        cancelled = own.http.post(f"/v1/tasks/{made['task_id']}/cancel", json={"reason": text})
        assert cancelled.json()["data"]["state"] == "RUNNING"
        failure = {"type": text, "message": text, "traceback": text}
        assert worker.ask("finish", **token(task), outcome="dead", reason=text, error=failure)["state"] == "CANCELLED"
        own.submit("b")
        task = worker.take()
        assert worker.ask("finish", **token(task), outcome="dead", reason=text, error=failure)["state"] == "FAILED"
        assert own.task(task["task_id"])["error"]["message"] == "😀?"
    queue = own.http.post("/v1/queues", json={"name": "q"}).json()["data"]["queue_id"]
    known = own.application.node.remembered(own.environment, queue)
    assert known is not None
    assert own.http.delete(f"/v1/queues/{queue}").status_code == 200
    own.application.node.remember(known)
    late = own.http.post("/v1/tasks", json={"queue": "q", "handler": "h"}, headers={"Idempotency-Key": "k"})
    assert late.status_code == 404
