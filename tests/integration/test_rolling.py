"""The short form of ``rolling.py``; a hundred restarts of each pool take some minutes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.rolling import POOLS


@pytest.mark.parametrize("pool", POOLS)
def test_rolling_restarts_lose_and_repeat_nothing(pool: str) -> None:
    """Workers replaced under load hand back what they hold and end what they run: every task runs exactly once."""
    command = [sys.executable, "-m", "tests.integration.rolling", "4", pool]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nothing lost, nothing repeated" in ran.stdout
