"""The conformance suite itself: it is complete, it skips what it must, and it can fail."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import taskmq.testing.conformance as package
from taskmq.errors import TaskMQError
from taskmq.testing.clock import FakeClock
from taskmq.testing.conformance import FAMILIES, conformance, run, scenarios
from taskmq.transport.memory import MemoryTransport
from tests.conformance import claim_mutants, end_mutants, gate_mutants, limit_mutants, sight_mutants  # noqa: F401
from tests.conformance.mutants import MUTANTS


def memory(clock: FakeClock, place: Path) -> MemoryTransport:
    return MemoryTransport(clock)


def limited(limitations: Mapping[str, str]) -> Callable[[FakeClock, Path], MemoryTransport]:
    class Limited(MemoryTransport):
        pass

    Limited.limitations = limitations
    return lambda clock, place: Limited(clock)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_faulty_store_is_caught(name: str, tmp_path: Path) -> None:
    """For each fault there is a scenario that fails with it, by its own words or the store's, and passes without it."""
    families, plant = MUTANTS[name]
    for scenario in scenarios(families).values():
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            try:
                run(scenario, memory, tmp_path)
            except (AssertionError, TaskMQError):
                pass
            except Exception:  # skipped; or it crashed, maybe because the mutant does not fit the code any more
                continue
            else:
                continue
        try:
            run(scenario, memory, tmp_path)
        except AssertionError:
            continue  # it fails anyway, so it proves nothing
        return
    pytest.fail(f"no scenario of {families} notices that {name}")


def test_a_limitation_is_skipped_with_its_reason(tmp_path: Path) -> None:
    """A scenario that the store says it cannot do is skipped, and the reason is the store's own."""
    factory = limited({"reserve_waits_for_the_due_time": "no delays over 2^31 ms"})
    test = conformance(factory)["test_reserve_waits_for_the_due_time"]
    with pytest.raises(pytest.skip.Exception, match=re.escape("no delays over 2^31 ms")):
        test(tmp_path)


@pytest.mark.parametrize("limitations", [{"reserve_is_fast": "never was"}, {"reserve_waits_for_the_due_time": " "}])
def test_a_limitation_must_name_a_scenario_and_a_reason(limitations: Mapping[str, str], tmp_path: Path) -> None:
    """A name that is no scenario, or a reason that says nothing, fails."""
    test = conformance(limited(limitations))["test_limitations_name_scenarios_that_exist"]
    with pytest.raises(AssertionError):
        test(tmp_path)


def test_a_store_that_is_not_shared_is_not_opened_twice(tmp_path: Path) -> None:
    """Scenarios for several processes are skipped where the store says that it is not shared."""
    opened: list[Path] = []

    def factory(clock: FakeClock, place: Path) -> MemoryTransport:
        opened.append(place)
        return MemoryTransport(clock)

    with pytest.raises(pytest.skip.Exception, match="not shared"):
        conformance(factory)["test_lock_is_shared"](tmp_path)
    assert len(opened) == 1


def test_each_test_has_a_place_of_its_own(tmp_path: Path) -> None:
    """Each place is a new, empty directory whose name can serve as a namespace."""
    places: list[Path] = []

    def factory(clock: FakeClock, place: Path) -> MemoryTransport:
        assert list(place.iterdir()) == []
        places.append(place)
        return MemoryTransport(clock)

    for name in ("test_publish_of_nothing_is_harmless", "test_settle_of_nothing_is_harmless"):
        conformance(factory)[name](tmp_path)
    assert len(set(places)) == 2
    assert all(re.fullmatch(r"[a-z][a-z0-9]{1,30}", place.name) for place in places)


def test_supports_chooses_families() -> None:
    """A store that is being written can be asked family by family; a typing error is told."""
    tests = conformance(memory, supports=["order", "locks"])
    wanted = {f"test_{name}" for name in scenarios(["order", "locks"])}
    assert set(tests) == wanted | {"test_limitations_name_scenarios_that_exist", "test_capabilities_are_as_declared"}
    with pytest.raises(ValueError, match="no such family of scenarios: odrer"):
        conformance(memory, supports=["odrer"])


def test_every_family_is_asked() -> None:
    """No module of the package is forgotten, and each has scenarios."""
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)} - {"crowd", "kit", "places", "suite"}
    assert modules == set(FAMILIES)
    assert all(scenarios([family]) for family in FAMILIES)


def test_the_page_of_promises_names_scenarios_that_exist() -> None:
    """Every sentence of the model is listed with scenarios, and each of them is one (docs/conformance.md)."""
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    rows = re.findall(r"^\| (?!---|sentence)(.*) \| (.*) \|$", page.split("## What no store")[0], re.MULTILINE)
    named = {sentence: re.findall(r"`(\w+)`", cell) for sentence, cell in rows}
    assert [sentence for sentence, names in named.items() if not names] == []
    assert sorted({name for names in named.values() for name in names} - set(scenarios())) == []


def test_every_scenario_states_its_promise() -> None:
    """Each scenario says in one sentence what is promised, and where."""
    for name, scenario in scenarios().items():
        doc = inspect.getdoc(scenario) or ""
        assert "\n" not in doc, name
        assert re.search(r"\((§|.*§|.*\.(md|py))[^)]*\)\.$", doc), f"{name} cites nothing: {doc}"
        assert list(inspect.signature(scenario).parameters) == ["kit"], name


def test_the_suite_asks_no_store_for_its_name() -> None:
    """Capabilities and limitations are asked, never the name."""
    sources = [path.read_text() for path in Path(package.__path__[0]).glob("*.py")]
    assert not any("store.name" in source or ".name ==" in source for source in sources)
