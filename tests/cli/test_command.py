"""The command as a process: what it imports, how a worker lives and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taskmq.cli import main
from tests.cli.project import Taskmq, tasks

HEAVY = ("sqlalchemy", "alembic", "rich", "asyncio", "sqlite3", "taskmq.worker", "taskmq.transport.sql")
RUN = [sys.executable, "-m", "taskmq"]
COMMANDS = list(main._COMMANDS)


def loaded_by(*words: str) -> set[str]:
    """The heavy modules that a command loads."""
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom taskmq.cli.main import cli\n"
        f"result = CliRunner().invoke(cli, {list(words)!r})\nassert result.exit_code == 0, result.output\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "words",
    [("--help",), ("--version",), *((name, "--help") for name in COMMANDS)],
)
def test_help_loads_nothing_heavy(project: Path, words: tuple[str, ...]) -> None:
    """Asking for help or the version loads no database, worker, event loop or table printer."""
    assert loaded_by(*words) == set()


def test_looking_does_not_load_the_worker(taskmq: Taskmq, shop: Path) -> None:
    """``status`` loads the store that it looks at, and neither the worker nor, off a terminal, rich."""
    taskmq("enqueue", "shop.note", "--app", "shop", "--args", '["t"]')
    assert not loaded_by("status", "--url", "sqlite:///shop.db") & {"taskmq.worker", "rich", "asyncio"}


def test_a_worker_runs_tasks_and_ends_well_on_sigterm(taskmq: Taskmq, shop: Path) -> None:
    """``taskmq worker`` runs what is published, and SIGTERM ends it with exit code 0."""
    (shop / "shop.py").write_text(
        "import pathlib\nfrom taskmq import App\napp = App('sqlite:///shop.db')\n"
        "@app.task\ndef touch(name: str) -> str:\n    open(name, 'w').close()\n    return name\n"
    )
    os.mkfifo("ran")  # opening it blocks the handler until we read: no sleep is needed to know that it runs
    taskmq("enqueue", "shop.touch", "--app", "shop", "--args", '["ran"]')
    with subprocess.Popen([*RUN, "worker", "shop:app"], stderr=subprocess.PIPE, text=True) as worker:
        Path("ran").read_bytes()
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log
    assert "handlers: shop.touch" in log
    assert [(task.state, task.result) for task in tasks()] == [("SUCCEEDED", "ran")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("shop:app", "--app", "shop:app"), "given twice"),
        (("shop:app", "--concurrency", "0"), "concurrency 0"),
        (("shop:app", "--pool", "none"), "pool 'none'"),
        (("shop:app", "--prefetch", "few"), "neither auto nor a number"),
        (("shop:app", "--prefetch", "5000"), "prefetch 5000"),
        (("shop:app", "--grace", "soon"), "grace 'soon'"),
        (("shop:app", "--queues", "a b"), "queue 'a b'"),
        (("shop:app", "--log-level", "loud"), "'loud' is not one of"),
        (("bare:app",), "the app bare:app has no handlers"),
        ((), "no app to work for"),
    ],
)
def test_a_wrong_worker_option_is_one_line(shop: Path, words: tuple[str, ...], told: str) -> None:
    """A worker that cannot be what it is asked to be does not start: one line after its log, and exit code 2."""
    (shop / "bare.py").write_text("from taskmq import App\napp = App('memory://')\n")
    ran = subprocess.run([*RUN, "worker", *words], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert told in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr


def test_the_root_tells_commands_and_exit_codes(taskmq: Taskmq) -> None:
    """``taskmq`` alone and ``taskmq --help`` print the commands and what each exit code means."""
    bare, told = taskmq(), taskmq("--help")
    assert (bare.code, told.code) == (0, 0)
    assert bare.out == told.out
    for word in (*COMMANDS, "Exit codes", "not found"):
        assert word in told.out


def test_an_unknown_command_is_one_line(taskmq: Taskmq) -> None:
    """A command that does not exist is one line with a hint, and exit code 2."""
    ran = taskmq("stats")
    assert ran.code == 2
    assert ran.err.startswith("taskmq: No such command 'stats'")
    assert ran.err.count("\n") == 1


def test_a_closed_pipe_is_no_error(taskmq: Taskmq, shop: Path) -> None:
    """A reader that has seen enough, as head does, ends a listing without a word on stderr."""
    Path("n.csv").write_text("text\n" + "".join(f"{n}\n" for n in range(3000)))
    taskmq("enqueue", "shop.note", "--app", "shop", "--from", "n.csv")
    listing = [*RUN, "task", "list", "--url", "sqlite:///shop.db", "--limit", "3000", "--json"]
    with subprocess.Popen(listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_bug_is_told_as_one(taskmq: Taskmq, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody expected is one line with its type, and exit code 70."""

    def broken(url: str, **_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("taskmq.app.open_store", broken)
    ran = taskmq("status", "--app", "shop")
    assert ran.code == 70
    assert ran.err == "taskmq: unexpected KeyError: 'oops' (--debug shows where)\n"
