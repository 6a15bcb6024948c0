"""The 80 programs with the right answers of the claim rule, on every store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskmq.testing.clock import FakeClock
from taskmq.testing.vectors import Program
from taskmq.transport.registry import open_store

PROGRAMS = json.loads((Path(__file__).parent / "vectors.json").read_text())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["name"])
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_claims_follow_the_rule(scheme: str, program: dict[str, Any], tmp_path: Path) -> None:
    """Every reserve of the program returns exactly the tasks that the claim rule says, in order."""
    clock = FakeClock()
    store = open_store("memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/q.db?synchronous=off", clock=clock)
    try:
        Program(program, store, clock).run()
    finally:
        store.close()
