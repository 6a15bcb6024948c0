"""Memory stores with one fault each: proof that the suite can fail.

A mutant is a function that plants its fault with a monkeypatch; ``@mutant`` names the families that must notice. They
are in claim_mutants.py (who is next), gate_mutants.py, limit_mutants.py (who may start), end_mutants.py (what becomes
of it) and sight_mutants.py (who sees what). A mutant that only makes the store crash proves nothing, and fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Mutation = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[tuple[str, ...], Mutation]] = {}


def mutant(*families: str) -> Callable[[Mutation], Mutation]:
    """Register a fault, and who must notice it."""

    def register(plant: Mutation) -> Mutation:
        assert plant.__name__ not in MUTANTS
        MUTANTS[plant.__name__] = (families, plant)
        return plant

    return register


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by ``around(original, *arguments)``."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: around(original, *args, **kwargs))
