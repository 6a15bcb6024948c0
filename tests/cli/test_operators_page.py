"""docs/operators.md is true."""

from __future__ import annotations

import re
from pathlib import Path

from taskmq.cli import exits, main
from taskmq.doctor import checks
from tests.cli.test_doctor import FAULTS

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", PAGE, flags=re.MULTILINE)[[*re.findall(r"^## (.*)$", PAGE, re.MULTILINE)].index(title) + 1]


def test_every_check_is_on_the_page() -> None:
    """The page's table has each check that a made fault is found by, with its level, and no other."""
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in section("Doctor").splitlines() if "|" in line]
    told = {
        (name, level)
        for names, *cells in rows[2:]
        for name in re.findall("`([a-z-]+)`", names)
        for level, cell in zip(("error", "warning"), cells, strict=True)
        if cell
    }
    assert {(fault.check, fault.level) for fault in FAULTS} <= told
    assert {name for name, _ in told} == {fault.check for fault in FAULTS} | {"journal"}
    assert len(checks.CHECKS) == len(set(checks.CHECKS))


def test_the_page_has_the_exit_codes() -> None:
    """The page and ``taskmq --help`` tell the same exit codes."""
    codes = re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)
    assert codes == re.findall(r"^  (\d+) ", exits.EPILOG, re.MULTILINE)
    assert [int(code) for code in codes] == [0, 1, 2, 3, 4, 70, 130]


def test_the_page_has_every_command() -> None:
    """Each command is mentioned."""
    assert [name for name in main._COMMANDS if f"taskmq {name}" not in PAGE] == []
