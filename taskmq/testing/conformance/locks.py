"""Named leases: one owner at a time, until given back or over (base.py)."""

from __future__ import annotations

from taskmq.testing.conformance.kit import SECOND, Kit, needs

TTL = 10 * SECOND


def lock_has_one_owner(kit: Kit) -> None:
    """While one owner holds it, another does not get it (base.py)."""
    assert kit.store.lock("leader", "one", TTL)
    assert not kit.store.lock("leader", "two", TTL)


def lock_ends_by_the_store_clock(kit: Kit) -> None:
    """A lease that was not renewed is free when its time is over, not before (base.py, §9)."""
    kit.store.lock("leader", "one", TTL)
    kit.advance(9)
    assert not kit.store.lock("leader", "two", TTL)
    kit.advance(1)
    assert kit.store.lock("leader", "two", TTL)
    assert not kit.store.lock("leader", "one", TTL)


def lock_is_renewed_by_its_owner(kit: Kit) -> None:
    """Its owner may take it again and so renews it (base.py)."""
    for _ in range(3):
        assert kit.store.lock("leader", "one", TTL)
        kit.advance(8)
    assert not kit.store.lock("leader", "two", TTL)


def lock_names_are_independent(kit: Kit) -> None:
    """Two names are two leases (base.py)."""
    assert kit.store.lock("leader", "one", TTL)
    assert kit.store.lock("scheduler", "two", TTL)


def unlock_gives_it_back(kit: Kit) -> None:
    """Given back, it is free at once (base.py)."""
    kit.store.lock("leader", "one", TTL)
    kit.store.unlock("leader", "one")
    assert kit.store.lock("leader", "two", TTL)


def unlock_by_another_changes_nothing(kit: Kit) -> None:
    """Only its owner gives it back; unlocking what nobody holds is harmless (base.py)."""
    kit.store.lock("leader", "one", TTL)
    kit.store.unlock("leader", "two")
    kit.store.unlock("nobody's", "two")
    assert not kit.store.lock("leader", "two", TTL)


def unlock_by_a_former_owner_changes_nothing(kit: Kit) -> None:
    """An owner whose lease ended cannot take it from the next one (base.py)."""
    kit.store.lock("leader", "one", TTL)
    kit.advance(10)
    kit.store.lock("leader", "two", TTL)
    kit.store.unlock("leader", "one")
    assert not kit.store.lock("leader", "one", TTL)


@needs("shared")
def lock_is_shared(kit: Kit) -> None:
    """A named lease holds across processes (base.py)."""
    other = kit.open()
    assert kit.store.lock("leader", "one", TTL)
    assert not other.lock("leader", "two", TTL)
    kit.store.unlock("leader", "one")
    assert other.lock("leader", "two", TTL)
