"""The 80 programs with the right answers of the claim rule, on every store."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from taskmq.testing.clock import FakeClock
from taskmq.testing.vectors import Program
from tests.stores import STORES

PROGRAMS = json.loads((Path(__file__).parent / "vectors.json").read_text())
IN_PROCESS = ("memory", "sqlite")
"""One call a step; the others are told steps together, for an exchange with a server takes its time."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["name"])
@pytest.mark.parametrize("name", STORES)
def test_claims_follow_the_rule(name: str, program: dict[str, Any], tmp_path: Path) -> None:
    """Every reserve of the program returns exactly the tasks that the claim rule says, in order."""
    clock = FakeClock()
    place = tmp_path / uuid.uuid4().hex
    place.mkdir()
    store = STORES[name](clock, place)
    try:
        Program(program, store, clock, together=name not in IN_PROCESS).run()
        store.flush()
    finally:
        store.close()
