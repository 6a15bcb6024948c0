"""The README is true."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the README's Python in it as shop.py, and nothing else."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "shop.py").write_text(code)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT)}  # this tree, not the one that the environment has installed
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=env
    )


def test_the_code_works_when_pasted(shop: Path) -> None:
    """The README's Python, saved as a file and run in an empty folder, prints what the README says."""
    ran = run(shop, "shop.py")
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stderr
    assert "Hello Ada! Hello Ada! True" in lines
    assert [line for line in lines if line.startswith("order")] == [f"order 7: {s}" for s in ("pack", "label", "send")]


def test_the_shell_lines_work(shop: Path) -> None:
    """The README's commands that publish and look work in the folder of its Python."""
    (shop / "orders.csv").write_text("order,step\n7,pack\n7,label\n")
    lines = re.findall(r"^    \.venv/bin/taskmq ((?!worker).*)$", README, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        ran = run(shop, "-m", "taskmq", *shlex.split(line))
        assert (ran.returncode, ran.stderr) == (0, ""), line


def test_the_make_targets_exist() -> None:
    """Every make target that the README shows is there."""
    targets = re.findall(r"^    make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
