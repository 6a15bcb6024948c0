from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_usage_type_checks_exactly_as_written() -> None:
    """Correct use passes mypy --strict, and each wrong use that is marked in the file is an error."""
    usage = Path(__file__).with_name("usage.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", str(usage)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
