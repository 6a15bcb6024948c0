"""A node as a whole: a slow database, several nodes over one, TLS, limits of connections."""

from __future__ import annotations

import sqlite3
import ssl
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from taskmq.client import Client, Worker
from taskmq.transport.sql.sqlite.connection import Settings as Url
from tests.server.kit import Running, Socket, running, token
from tests.server.test_command_line import environment, server


def test_a_locked_database_delays_no_heartbeat(tmp_path: Path) -> None:
    with running(tmp_path, store_timeout=3.0) as own, Socket(own) as worker, Socket(own) as other:
        worker.hello()
        other.hello()
        own.submit("k")
        task = worker.take()
        path = Url(own.settings.database_url).path
        with closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            other.say(type="claim", ref=1, queues=["initial"], n=1)  # hangs
            began = time.monotonic()
            assert worker.ask("renew", items=[])["type"] == "renewed"
            assert time.monotonic() - began < 0.5
            assert own.http.get("/healthz").status_code == 200
            refused = worker.ask("finish", **token(task), outcome="success")
            assert refused["code"] in ("TIMEOUT", "UNAVAILABLE")
            lock.execute("ROLLBACK")
        finished = worker.ask("finish", **token(task), outcome="success")
        assert finished["state"] == "SUCCEEDED"


def test_two_nodes_share_one_database(tmp_path: Path) -> None:
    with running(tmp_path, node="n1") as one, running(tmp_path, node="n2") as two:
        with Socket(two, one.token) as worker:
            session = worker.hello()["session_id"]
            waiting = threading.Timer(0.3, one.submit, ["k"])
            waiting.start()
            (task,) = worker.claim()  # told by the database, not by this process's signal
            waiting.join()
            worker.ask("start", **token(task))
        with Socket(one) as worker:
            welcome = worker.hello(resume={"session_id": session, "deliveries": [token(task)]})
            assert [item["phase"] for item in welcome["resumed"]] == ["started"]
            assert worker.ask("finish", **token(task), outcome="success")["state"] == "SUCCEEDED"
        assert one.task(task["task_id"])["attempt"] == 1


def test_a_revoked_token_acts_within_five_seconds(own: Running) -> None:
    from taskmq.server.database import directory

    with Socket(own) as worker:
        worker.hello()
        with own.database.write() as connection:
            assert directory.revoke_token(connection, own.token[4:20])
        began = time.monotonic()
        assert worker.closed() == (1008, "UNAUTHENTICATED")
        assert time.monotonic() - began < 5.0
    assert own.http.get("/v1/tasks").status_code == 401


def test_a_node_takes_so_many_connections(tmp_path: Path) -> None:
    with running(tmp_path, max_connections=2, max_anonymous=1) as own, Socket(own) as first, Socket(own, None):
        first.hello()
        with pytest.raises(InvalidStatus) as caught:
            Socket(own)
        assert caught.value.response.status_code == 429
        assert caught.value.response.headers["Retry-After"] == "1"


def test_answers_do_not_wait_for_an_acknowledgement(own: Running) -> None:
    def seconds() -> float:
        began = time.monotonic()
        own.http.get("/healthz")
        return time.monotonic() - began

    assert min(seconds() for _ in range(20)) < 0.03


def test_silence_ends_a_connection(tmp_path: Path) -> None:
    with running(tmp_path, hello_timeout=0.3, heartbeat_timeout=0.5) as own:
        with Socket(own) as worker:
            assert worker.closed() == (1008, "HELLO_TIMEOUT")
        with Socket(own) as worker:
            worker.hello()
            assert worker.closed() == (1008, "HEARTBEAT_TIMEOUT")


def test_tls_from_end_to_end(tmp_path: Path) -> None:
    from tests.server.test_command_line import PLACE, run

    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days",
         "1", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    assert environment(tmp_path)
    assert run(tmp_path, "migrate", "up")[0] == 0
    output = str(tmp_path / "c.json")
    assert run(tmp_path, "admin", "bootstrap", *PLACE, "--worker-access", "--output", output)[0] == 0
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    with server(tmp_path, "--tls-cert", cert, "--tls-key", key) as (_, url):
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=cert)
        with Client(url, output, verify=context) as api:
            task = api.submit_task("k", queue="initial", handler="h", payload=1)
            with Worker(api, ["initial"], handlers={"h": lambda execution: execution.payload}):
                assert api.get_task(task.task_id, wait=10).result == 1
