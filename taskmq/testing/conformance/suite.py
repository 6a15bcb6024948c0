"""From scenarios to tests: collects the promise families, and runs a scenario on a fresh store."""

from __future__ import annotations

import importlib
import inspect
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from taskmq.testing.conformance.kit import Factory, Kit

Scenario = Callable[[Kit], None]

FAMILIES = (
    *(
        "publish",
        "idempotency",
        "delays",
        "order",
        "fairness",
        "turns",
        "partitions",
        "runs",
        "settle",
        "retries",
        "results",
    ),
    *(
        "leases",
        "poison",
        "expiry",
        "cancel",
        "hold",
        "dead_letters",
        "gates",
        "queued",
        "rates",
        "limits",
        "parking",
        "missed",
        "partition_limits",
        "capabilities",
        "progress",
        "stats",
        "watch",
        "inspect",
        "workers",
        "locks",
    ),
    *("control", "lifecycle", "concurrency", "processes", "crowds"),
)
"""The promise families: a module of this package each."""

pytest.register_assert_rewrite(f"{__package__}.crowd", *(f"{__package__}.{family}" for family in FAMILIES))


class Skipped(Exception):
    """The scenario does not apply to this store; the message says why."""


def scenarios(families: Collection[str] = FAMILIES) -> dict[str, Scenario]:
    """The scenarios of these families by name; raises ValueError for a family that does not exist."""
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        raise ValueError(f"no such family of scenarios: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    found: dict[str, Scenario] = {}
    for family in (name for name in FAMILIES if name in families):
        module = importlib.import_module(f"{__package__}.{family}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                assert name not in found, f"two scenarios are named {name}"
                found[name] = function
    return found


def run(scenario: Scenario, factory: Factory, folder: Path) -> None:
    """Run one scenario on a store of its own, in a new place below ``folder``; raises Skipped if it does not apply."""
    place = folder / f"q{uuid.uuid4().hex[:16]}"
    place.mkdir()
    with Kit(factory, place) as kit:
        reason = kit.store.limitations.get(scenario.__name__)
        if reason is not None:
            raise Skipped(reason)
        for capability in getattr(scenario, "needs", ()):
            if not getattr(kit.store.capabilities, capability):
                raise Skipped(f"this store is not {capability}")
        scenario(kit)


def conformance(
    factory: Factory,
    supports: Collection[str] | None = None,
    lacks: Collection[str] = (),
    limited: Collection[str] = (),
) -> dict[str, Callable[..., None]]:
    """Tests for pytest, by name: one for each scenario, and two that hold the store to what it says of itself.

    ``supports``: the promise families to ask about; None for all. ``lacks``: capabilities that the store does not
    have, so that scenarios which need them are left out. ``limited``: scenarios that it names in ``limitations``, left
    out, too. Tests make sure that it really says so.
    """
    tests = {
        f"test_{name}": _test(scenario, factory)
        for name, scenario in scenarios(FAMILIES if supports is None else supports).items()
        if not set(getattr(scenario, "needs", ())) & set(lacks) and name not in limited
    }
    tests["test_limitations_name_scenarios_that_exist"] = _limitations_test(factory, limited)
    tests["test_capabilities_are_as_declared"] = _capabilities_test(factory, lacks)
    return tests


def _test(scenario: Scenario, factory: Factory) -> Callable[..., None]:
    def test(tmp_path: Path) -> None:
        try:
            run(scenario, factory, tmp_path)
        except Skipped as skipped:
            pytest.skip(str(skipped))

    return _named(test, f"test_{scenario.__name__}", scenario.__doc__)


def _limitations_test(factory: Factory, limited: Collection[str]) -> Callable[..., None]:
    def test(tmp_path: Path) -> None:
        def check(kit: Kit) -> None:
            unknown = sorted(set(kit.store.limitations) - set(scenarios()))
            assert unknown == [], f"limitations name scenarios that do not exist: {unknown}"
            undeclared = sorted(set(limited) - set(kit.store.limitations))
            assert undeclared == [], f"left out here, but no limitation of the store: {undeclared}"
            silent = sorted(name for name, reason in kit.store.limitations.items() if not reason.strip())
            assert silent == [], f"limitations without a reason: {silent}"

        run(check, factory, tmp_path)

    return _named(test, "test_limitations_name_scenarios_that_exist", "Every limitation names a scenario and a reason.")


def _capabilities_test(factory: Factory, lacks: Collection[str]) -> Callable[..., None]:
    def test(tmp_path: Path) -> None:
        def check(kit: Kit) -> None:
            has = [name for name in lacks if getattr(kit.store.capabilities, name)]
            assert has == [], f"scenarios are left out although the store is {', '.join(has)}"

        run(check, factory, tmp_path)

    return _named(test, "test_capabilities_are_as_declared", "Nothing is left out that the store can do.")


def _named(test: Callable[..., None], name: str, doc: str | None) -> Callable[..., None]:
    function: Any = test
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return test
