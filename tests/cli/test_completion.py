"""Tab completion: the shells' scripts, and what they are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.project import URL, Taskmq


def proposed(*words: str) -> list[str]:
    """What bash is told for this line, the last word being unfinished."""
    line = {"COMP_WORDS": " ".join(["taskmq", *words]), "COMP_CWORD": str(len(words))}
    ran = subprocess.run(
        [sys.executable, "-m", "taskmq"],
        env={**os.environ, **line, "_TASKMQ_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stderr == ""
    return [line.split(",", 1)[1] for line in ran.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(taskmq: Taskmq, project: Path, shell: str) -> None:
    """The script of a shell asks the command itself."""
    ran = taskmq("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert f"_TASKMQ_COMPLETE={shell}_complete" in ran.out


def test_the_script_of_bash_is_bash(taskmq: Taskmq, project: Path) -> None:
    """The printed script is one that bash accepts."""
    script = taskmq("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)


def test_an_unknown_shell_is_refused(taskmq: Taskmq, project: Path) -> None:
    """A shell that there is no script for is one line, and exit code 2."""
    ran = taskmq("completion", "csh")
    assert (ran.code, "'csh' is not one of" in ran.err) == (2, True)


def test_commands_queues_and_handlers_are_proposed(taskmq: Taskmq, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands come by name, queues from the store, handlers from the app."""
    for queue in ("mail", "maps"):
        taskmq("queue", "pause", queue, "--url", URL)
    assert proposed("dea") == ["dead"]
    assert proposed("queue", "pause", "--url", URL, "ma") == ["mail", "maps"]
    assert proposed("task", "list", "--url", URL, "--queue", "mai") == ["mail"]
    assert proposed("enqueue", "--app", "shop", "shop.") == ["shop.note", "shop.record", "shop.send"]
    monkeypatch.setenv("TASKMQ_APP", "shop:app")
    assert proposed("partition", "list", "map") == ["maps"]


def test_a_tab_never_prints_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a store, or with an app that prints and fails, there is nothing to propose, and nothing is made."""
    assert proposed("queue", "pause", "ma") == []
    assert os.listdir() == []
    (project / "shop.py").write_text("print('hello')\n1 / 0\n")
    monkeypatch.setenv("TASKMQ_APP", "shop:app")
    assert proposed("queue", "pause", "ma") == []
