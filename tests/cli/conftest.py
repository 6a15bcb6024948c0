"""A project in a temporary folder, and the command line run in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskmq.cli.main import cli
from tests.cli.project import SHOP, Ran, Taskmq


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, whose modules are forgotten afterwards."""
    for name in [name for name in os.environ if name.startswith("TASKMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget_modules(tmp_path)


def forget_modules(folder: Path) -> None:
    """Let the next import find the folder's modules as they are then."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def taskmq(project: Path) -> Taskmq:
    """Run one command in this process, as a new process would: no app is left from the one before."""

    def run(*words: str, stdin: bytes | str | None = None) -> Ran:
        forget_modules(project)
        result = CliRunner().invoke(cli, list(words), input=stdin, prog_name="taskmq")
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def shop(project: Path) -> Path:
    """A project with three handlers on SQLite: shop.send, shop.record and shop.note."""
    (project / "shop.py").write_text(SHOP)
    return project
