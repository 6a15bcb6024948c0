"""taskmq migrate, admin and server as people type them, and the example of the protocol."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskmq.cli.main import cli
from taskmq.cli.server import limits

ROOT = Path(__file__).parents[2]
PLACE = ("--application", "a", "--namespace", "n", "--environment", "e", "--queue", "initial")


def environment(path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKMQ_")}
    url = f"sqlite:///{path / 't.db'}?synchronous=off"
    return {**kept, "PYTHONPATH": str(ROOT), "TASKMQ_DATABASE_URL": url}


def run(path: Path, *arguments: str, **more: str) -> tuple[int, str, str]:
    """A command in this process: exit code, stdout, stderr."""
    kept = {name: None for name in os.environ if name.startswith("TASKMQ_")}
    done = CliRunner(env={**kept, **environment(path), **more}).invoke(cli, arguments, prog_name="taskmq")
    return done.exit_code, done.stdout, done.stderr


def run_apart(path: Path, *arguments: str, **more: str) -> tuple[int, str, str]:
    """The same in a process of its own, where every warning is an error."""
    command = [sys.executable, "-W", "error", "-m", "taskmq", *arguments]
    done = subprocess.run(command, env={**environment(path), **more}, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def migrated(tmp_path: Path) -> Path:
    assert run(tmp_path, "migrate", "up")[:2] == (0, "applied=3 current=000003\n")
    return tmp_path


@contextmanager
def server(path: Path, *arguments: str, killed: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its URL. ``killed``: the test ends it."""
    command = [sys.executable, "-m", "taskmq", "server", "--http-addr", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, env=environment(path), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"listening=(https?://127\.0\.0\.1:\d+)\n", line)
        assert match is not None, line
        yield process, match[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == (-signal.SIGKILL if killed else 0)
        assert process.stdout is not None
        process.stdout.close()


def test_migrations_go_up_and_down(migrated: Path) -> None:
    assert run_apart(migrated, "migrate", "up")[:2] == (0, "applied=0 current=000003\n")
    assert run(migrated, "migrate", "status")[:2] == (0, "current=000003 latest=000003 pending=0\n")
    assert run(migrated, "migrate", "down", "--to", "2")[0] == 2
    assert run(migrated, "migrate", "down", "--to", "2", "--yes")[:2] == (0, "undone=1 current=000002\n")
    code, out, _ = run(migrated, "migrate", "status", "--json")
    assert (code, json.loads(out)) == (1, {"current": "000002", "latest": "000003", "pending": 1})
    code, _, err = run(migrated, "server")
    assert (code, err.count("\n")) == (2, 1)
    assert "taskmq migrate up" in err


def test_bootstrap_writes_a_private_file_and_never_the_token_elsewhere(migrated: Path) -> None:
    output = migrated / "c.json"
    code, out, err = run_apart(migrated, "admin", "bootstrap", *PLACE, "--worker-access", "--output", str(output))
    assert (code, err) == (0, "")
    credentials = json.loads(output.read_text())
    assert out == (
        f"application=a namespace=n environment=e queue=initial queue_id={credentials['queue']['queue_id']} "
        f"token_id={credentials['token_id']} output={output}\n"
    )
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert credentials["token"].startswith(f"tmq_{credentials['token_id']}_")
    assert (credentials["format"], credentials["expires_at"], "url" in credentials) == (1, None, False)
    again = run(migrated, "admin", "bootstrap", *PLACE, "--output", str(output))
    assert again[0] == 4
    named = migrated / "named.json"
    arguments = ("--url", "https://tasks.example", "--expires", "90d", "--output", str(named))
    assert run(migrated, "admin", "bootstrap", *PLACE, *arguments)[0] == 0
    assert json.loads(named.read_text())["url"] == "https://tasks.example"
    assert json.loads(named.read_text())["expires_at"] is not None
    link = migrated / "link.json"
    link.symlink_to(migrated / "target.json")
    assert run(migrated, "admin", "bootstrap", *PLACE, "--output", str(link))[0] == 4
    nowhere = ("--database", "postgresql://127.0.0.1:1/none", "--output", str(output))  # the file is looked at first
    assert run(migrated, "admin", "bootstrap", *PLACE, *nowhere)[0] == 4
    shown = json.loads(run(migrated, "admin", "bootstrap", *PLACE, "--json", "--output", str(migrated / "j"))[1])
    assert shown["queue_id"] == credentials["queue"]["queue_id"]
    taken = ("--application", "b", *PLACE[2:])
    other = migrated / "o.json"
    assert run(migrated, "admin", "bootstrap", *taken, "--output", str(other))[0] == 4
    assert not other.exists()


def test_addresses_that_others_reach_need_tls(migrated: Path) -> None:
    assert run(migrated, "server", "--http-addr", "0.0.0.0:0")[0] == 2
    assert run(migrated, "server", "--http-addr", "nonsense")[0] == 2
    assert run(migrated, "server", TASKMQ_DATABASE_URL="redis://x")[0] == 2
    assert run(migrated, "migrate", "up", TASKMQ_DATABASE_URL="")[0] == 2


def test_limits_come_from_the_environment(migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_BODY", "x"), ("MAX_PAYLOAD", str(900 * 1024 + 1)), ("REQUEST_RATE", "0")):
        code, _, err = run(migrated, "server", **{f"TASKMQ_{name}": value})
        assert (code, err.count("\n")) == (2, 1)
        assert f"TASKMQ_{name}" in err
    monkeypatch.setenv("TASKMQ_REQUEST_BURST", "7")
    assert limits() == {"request_burst": 7}


def example(path: Path, **more: str) -> tuple[int, str, str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/priority/main.py")]
    done = subprocess.run(command, env={**environment(path), **more}, capture_output=True, text=True, timeout=40)
    return done.returncode, done.stdout, done.stderr


def test_the_example_prints_exactly_its_two_lines(migrated: Path) -> None:
    output = migrated / "c.json"
    assert run(migrated, "admin", "bootstrap", *PLACE, "--worker-access", "--output", str(output))[0] == 0
    assert example(migrated)[0] == 2
    with server(migrated) as (_, url):
        where = {"TASKMQ_URL": url, "TASKMQ_CREDENTIALS_FILE": str(output)}
        code, out, err = example(migrated, **where)
        assert (code, err) == (0, "")
        assert out == (
            "submitted_priorities=0,9,4 executed_priorities=9,4,0\n"
            "completed=3 attempts_per_task=1 worker_drained=true\n"
        )
        host, _, port = url.removeprefix("http://").partition(":")
        taken: Any = run(migrated, "server", "--http-addr", f"{host}:{port}")
        assert taken[0] == 1
    code, out, err = example(migrated, **where)
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_tokens_are_made_replaced_and_ended(migrated: Path) -> None:
    file, again = migrated / "c.json", migrated / "r.json"
    assert run(migrated, "admin", "bootstrap", *PLACE, "--output", str(file))[0] == 0
    scopes = ("--scope", "limits:manage", "--scope", "tasks:read:initial")
    made = migrated / "t.json"
    code, out, err = run(migrated, "admin", "token", "create", *PLACE[:6], *scopes, "--output", str(made))
    content = json.loads(made.read_text())
    assert (code, out, err) == (0, f"token_id={content['token_id']} output={made}\n", "")
    assert content["scopes"][0] == {"scope": "limits:manage", "queues": "*"}
    assert len(content["scopes"][1]["queues"][0]) == 32
    old = content["token_id"]
    code, out, err = run(migrated, "admin", "token", "rotate", old, "--overlap", "1h", "--output", str(again))
    content = json.loads(again.read_text())
    assert (code, out, err) == (0, f"token_id={content['token_id']} replaces={old} output={again}\n", "")
    assert stat.S_IMODE(again.stat().st_mode) == 0o600
    assert (content["application"], content["namespace"], content["environment"]) == ("a", "n", "e")
    lines = [json.loads(line) for line in run(migrated, "admin", "token", "list", "--json")[1].splitlines()]
    ends = {line["token_id"]: line["expires_at"] for line in lines}
    assert (ends[old] is not None, ends[content["token_id"]]) == (True, None)
    assert run(migrated, "admin", "token", "revoke", old)[:2] == (0, f"token_id={old} revoked=true\n")
    assert run(migrated, "admin", "token", "rotate", old, "--output", str(migrated / "x.json"))[0] == 4
    assert run(migrated, "admin", "token", "revoke", "0" * 16)[0] == 5
    assert not (migrated / "x.json").exists()


def test_applications_and_namespaces_are_made_once(migrated: Path) -> None:
    code, out, _ = run(migrated, "admin", "application", "create", "payer")
    assert code == 0
    assert re.fullmatch(r"application=payer application_id=[0-9a-f]{32}\n", out)
    assert run(migrated, "admin", "application", "create", "payer")[0] == 4
    code, out, _ = run(migrated, "admin", "namespace", "create", "--application", "payer", "its")
    assert code == 0
    assert re.fullmatch(r"namespace=its namespace_id=[0-9a-f]{32} application=payer\n", out)
    assert run(migrated, "admin", "namespace", "create", "--application", "nobody", "other")[0] == 5
