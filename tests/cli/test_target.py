"""Which app and which store a command works on, and what is said when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.project import Taskmq

GIVEN_APP, GIVEN_URL = ("--app", "given:app"), ("--url", "sqlite:///given_url.db")


@pytest.fixture
def apps(project: Path) -> None:
    """Apps that are called as the place that names them, each on a database of its own."""
    for place in ("given", "environment", "project"):
        source = f'from taskmq import App\napp = App("sqlite:///{place}_app.db")\n@app.task(name="h")\ndef h(): ...\n'
        (project / f"{place}.py").write_text(source)


def name_in(place: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment or the project name an app or a URL."""
    value = f"{place}:app" if what == "app" else f"sqlite:///{place}_url.db"
    if place == "environment":
        monkeypatch.setenv(f"TASKMQ_{what.upper()}", value)
    else:
        with Path("pyproject.toml").open("a") as file:
            if not file.tell():
                file.write("[tool.taskmq]\n")
            file.write(f'{what} = "{value}"\n')


@pytest.mark.parametrize(
    ("named", "words", "used"),
    [
        ([], (), "taskmq"),
        (["project url"], (), "project_url"),
        (["environment url", "project url"], (), "environment_url"),
        (["project app", "project url"], (), "project_app"),
        (["project app", "environment url"], (), "project_app"),
        (["environment app", "environment url", "project app", "project url"], (), "environment_app"),
        (["environment app", "project app"], GIVEN_APP, "given_app"),
        (["environment app", "environment url", "project app"], GIVEN_URL, "given_url"),
    ],
)
def test_the_nearest_place_wins(
    taskmq: Taskmq, apps: None, monkeypatch: pytest.MonkeyPatch, named: list[str], words: tuple[str, ...], used: str
) -> None:
    """Words go before the environment, that before pyproject.toml; an app before a URL, which only --url overrules."""
    for place_and_what in named:
        name_in(*place_and_what.split(), monkeypatch)
    assert taskmq("enqueue", "h", *words).code == 0
    assert [name for name in os.listdir() if name.endswith(".db")] == [f"{used}.db"]
    assert len(taskmq("task", "list", *words, "--json").json) == 1


def test_a_namespace_is_a_store_of_its_own(taskmq: Taskmq, project: Path) -> None:
    """--namespace chooses among the namespaces in the store of a URL."""
    taskmq("enqueue", "h", "--namespace", "a")
    assert len(taskmq("task", "list", "--namespace", "a", "--json").json) == 1
    assert taskmq("task", "list", "--json").json == []


def test_the_working_directory_is_on_the_path(taskmq: Taskmq, project: Path) -> None:
    """An app in the working directory can import what lies beside it, packages included."""
    (project / "pkg").mkdir()
    (project / "pkg" / "__init__.py").write_text("")
    (project / "pkg" / "tasks.py").write_text(
        'from taskmq import App\nclass Apps:\n    main = App("sqlite:///x.db")\n@Apps.main.task\ndef f(): ...\n'
    )
    assert taskmq("enqueue", "pkg.tasks.f", "--app", "pkg.tasks:Apps.main").code == 0


def test_looking_at_nothing_makes_nothing(taskmq: Taskmq, project: Path) -> None:
    """Where nothing names a store and there is no taskmq.db, a command that looks says so and makes no database."""
    ran = taskmq("status")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no taskmq.db in" in ran.err
    assert "--url" in ran.err
    assert not os.listdir()


BROKEN = {
    "raises.py": "1 / 0",
    "imports.py": "import nosuchlibrary",
    "syntax.py": "def",
    "empty.py": "",
    "other.py": "from taskmq import App\ntasks = App('memory://')\nx = 1",
}


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("nosuch:app", "no module 'nosuch' for the app 'nosuch:app'"),
        ("raises:app", "the app's module raises fails to import: ZeroDivisionError"),
        ("imports:app", "No module named 'nosuchlibrary'"),
        ("syntax:app", "SyntaxError"),
        ("empty:app", "module empty has no App named 'app' nor any other App"),
        ("other:app", "module other has no App named 'app'; it has other:tasks"),
        ("other:x", "module other has no App named 'x'; it has other:tasks"),
        (":app", "write module:name"),
        (".x:app", "write module:name"),
    ],
)
def test_an_app_that_cannot_be_used_is_told_in_one_line(taskmq: Taskmq, project: Path, app: str, told: str) -> None:
    """What is wrong with the named app is one line and exit code 2, for every command that needs it."""
    for name, source in BROKEN.items():
        (project / name).write_text(source)
    for words in (("status",), ("enqueue", "h"), ("worker",)):
        ran = taskmq(*words, "--app", app)
        assert (ran.code, ran.out) == (2, "")
        assert told in ran.err
        assert ran.err.count("\n") == 1


def test_debug_shows_the_traceback(taskmq: Taskmq, project: Path) -> None:
    """--debug, before or after the command's name, puts the traceback before the line."""
    (project / "raises.py").write_text("1 / 0")
    for words in (("--debug", "status"), ("status", "--debug")):
        ran = taskmq(*words, "--app", "raises")
        assert ran.err.startswith("Traceback")
        assert ran.err.splitlines()[-1].startswith("taskmq: the app's module raises fails to import")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tool.taskmq\n", "pyproject.toml cannot be read"),
        ("[tool.taskmq]\napp = 3\n", "[tool.taskmq] app"),
        ("[tool]\ntaskmq = 3\n", "pyproject.toml cannot be read"),
    ],
)
def test_a_broken_pyproject_is_told(taskmq: Taskmq, project: Path, text: str, told: str) -> None:
    """A pyproject.toml that cannot be understood is named, not passed over."""
    (project / "pyproject.toml").write_text(text)
    ran = taskmq("status")
    assert ran.code == 2
    assert told in ran.err


@pytest.mark.parametrize(
    ("code", "url", "told"),
    [
        (2, "nonsense", "is not a store's URL"),
        (2, "ftp://x", "the scheme must be one of"),
        (2, "sqlite:///notes.txt", "not a SQLite database"),
        (2, "sqlite:////proc/nowhere/x.db", "/proc/nowhere"),
    ],
)
def test_a_url_that_cannot_be_opened_is_told_in_one_line(
    taskmq: Taskmq, project: Path, code: int, url: str, told: str
) -> None:
    """A wrong URL, a file that is no database and a path that cannot be written are one line each."""
    (project / "notes.txt").write_text("Dear diary, " * 100)
    for words in (("status",), ("enqueue", "h")):
        ran = taskmq(*words, "--url", url)
        assert (ran.code, ran.out) == (code, "")
        assert told in ran.err
        assert ran.err.count("\n") == 1
