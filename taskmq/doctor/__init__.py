"""What is wrong with a store, its workers and an app's settings, and what to do about each.

``examine`` reads a snapshot once (facts.py), then each check is a small function from that to findings (checks.py).
What only a store can know about itself – its files, its durability settings – it says itself, in ``Store.checkup``.
Every read is bounded, so that it can be run against a busy store; nothing is changed but a named lease that is taken
and given back, which shows whether the store can be written at all.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import chain

from taskmq.doctor.checks import CHECKS
from taskmq.doctor.facts import Patient, read, read_facts, unusable
from taskmq.errors import TaskMQError, TransportError
from taskmq.transport.base import Finding, Store


def examine(app: Patient) -> list[Finding]:
    """Everything found wrong, errors first. Never raises for a fault of the store: that is a finding, too."""
    try:
        store = app.store
    except TaskMQError as error:
        return [unusable(error)]
    found: list[Finding] = []
    found += read(store.checkup, found)
    found += _writable(store)
    facts = read_facts(app, store, found)
    found += chain.from_iterable(check(facts) for check in CHECKS)
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level != "error")  # stable: in order of the checks


def _writable(store: Store) -> Iterator[Finding]:
    owner = f"doctor-{secrets.token_hex(4)}"
    try:
        store.lock(owner, owner, 1_000_000)
        store.unlock(owner, owner)
    except TransportError as error:
        yield unusable(error)


__all__ = ["examine", "unusable"]
