"""``taskmq dev``: a worker that is started anew whenever the code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from taskmq import App
from taskmq.cli.reload import Reloader
from tests.cli.project import URL, Taskmq

RUN = [sys.executable, "-m", "taskmq"]
WORKER = ["worker", "shop:app", "--log-level", "error", "--debug"]


def code(version: str) -> str:
    return (
        f'from taskmq import App\napp = App("{URL}")\n'
        f'@app.task\ndef version() -> str:\n    return "{version}"\n'
        "@app.task\ndef slow(name: str) -> str:\n    open(name).close()\n    return open('end').read()\n"
    )


@pytest.fixture
def asked(project: Path) -> Iterator[Callable[[], str]]:
    """Asks the running worker which version of the code it has."""
    (project / "shop.py").write_text(code("one"))
    with App(URL) as app:
        yield lambda: app.ref("shop.version").enqueue().result(timeout=60)


def test_changed_code_is_run(project: Path, asked: Callable[[], str], capsys: pytest.CaptureFixture[str]) -> None:
    """After a change the worker runs the new code, and at the end it is gone."""
    answers = []
    reloader = Reloader(WORKER, 5.0)

    def changes(stop: Event) -> Iterator[list[str]]:
        yield []
        answers.append(asked())
        (project / "shop.py").write_text(code("two"))
        yield ["shop.py"]
        answers.append(asked())

    reloader.run(changes)
    assert answers == ["one", "two"]
    assert reloader._worker is not None
    assert reloader._worker.returncode == 0
    assert "changed: shop.py; starting anew" in capsys.readouterr().err


def test_code_that_cannot_be_imported_waits_for_the_next_change(
    project: Path, asked: Callable[[], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A syntax error is shown, told once, and mended by the next change."""
    answers = []
    reloader = Reloader(WORKER, 5.0)

    def changes(stop: Event) -> Iterator[list[str]]:
        yield []
        (project / "shop.py").write_text("def")
        yield ["shop.py"]
        assert reloader._worker is not None
        reloader._worker.wait(60)
        yield []
        yield []
        (project / "shop.py").write_text(code("three"))
        yield ["shop.py"]
        answers.append(asked())

    reloader.run(changes)
    told = capfd.readouterr().err
    assert answers == ["three"]
    assert "SyntaxError" in told
    assert told.count("the worker has ended with exit code 2; waiting for the next change") == 1


def test_a_worker_that_does_not_end_is_killed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that cannot be stopped does not hold up the next one."""
    monkeypatch.setattr("taskmq.cli.reload.STUBBORN", 0.0)
    reloader = Reloader([], 0.0)
    reloader._words = [sys.executable, "-c", "import signal; signal.pause()"]
    pids = []

    def changes(stop: Event) -> Iterator[list[str]]:
        yield []
        for _ in range(2):
            assert reloader._worker is not None
            pids.append(reloader._worker.pid)
            reloader._worker.send_signal(signal.SIGSTOP)  # it cannot even take the signal
            yield ["x.py"]

    reloader.run(changes)
    assert len(set(pids)) == 2
    assert "does not end; killing it" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_tasks_end(taskmq: Taskmq, project: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end dev with exit code 0, after the running task; a change before that has been picked up."""
    pytest.importorskip("watchfiles", reason="pip install taskmq[reload]")
    (project / "shop.py").write_text(code("one"))
    (project / "README.md").write_text("")
    os.mkfifo("begin")
    os.mkfifo("end")
    command = [*RUN, "dev", "shop:app", "--grace", "60", "--concurrency", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line_with(process.stderr, "handlers: shop.slow")
        (project / "README.md").write_text("no code")
        (project / "other.py").write_text("x = 1")
        assert "changed: other.py; starting anew" in line_with(process.stderr, "changed")
        line_with(process.stderr, "handlers: shop.slow")
        taskmq("enqueue", "shop.slow", "--url", URL, "--args", '["begin"]')
        Path("begin").write_text("")  # the handler has opened it: it runs
        process.send_signal(number)
        line_with(process.stderr, "stop")
        Path("end").write_text("done")
        process.communicate(timeout=60)
    assert process.returncode == 0
    (task,) = taskmq("task", "list", "--url", URL, "--json").json
    assert (task["state"], task["result"]) == ("SUCCEEDED", "done")


def line_with(lines: Iterator[str], words: str) -> str:
    """The next line with these words; what comes before it is read over."""
    return next(line for line in lines if words in line)


def test_without_the_watching_library_it_says_how_to_get_it(
    taskmq: Taskmq, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where watchfiles is not installed, dev names it and the extra, and starts nothing."""
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    ran = taskmq("dev", "shop:app")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "taskmq: taskmq dev needs watchfiles, which is not installed: pip install taskmq[reload]\n"


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (("shop:app",), ["worker", "shop:app", "--debug", "--grace", "5"]),
        (("--app", "shop", "--grace", "1m"), ["worker", "shop", "--debug", "--grace", "1m"]),
        (("shop", "--pool", "solo"), ["worker", "shop", "--debug", "--grace", "5", "--pool", "solo"]),
        (("--pool", "solo", "--app", "shop"), ["worker", "shop", "--debug", "--grace", "5", "--pool", "solo"]),
    ],
)
def test_other_options_go_to_the_worker(
    taskmq: Taskmq, project: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], passed: list[str]
) -> None:
    """What dev does not know is the worker's."""
    seen: list[list[str]] = []
    monkeypatch.setitem(sys.modules, "watchfiles", type(sys)("watchfiles"))
    monkeypatch.setattr("taskmq.cli.reload.Reloader.run", lambda self, changes: seen.append(self._words[3:]))
    assert taskmq("dev", *words).code == 0
    assert seen == [passed]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("shop", "--app", "shop"), "given twice"),
        ((), "no app to work for"),
        (("shop", "--watch", "nowhere"), "does not exist"),
        (("shop", "--grace", "soon"), "--grace 'soon' is not a duration"),
    ],
)
def test_a_wrong_line_starts_nothing(taskmq: Taskmq, project: Path, words: tuple[str, ...], told: str) -> None:
    """A line that cannot be understood is one line of error and exit code 2."""
    ran = taskmq("dev", *words)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert told in ran.err
