"""The conformance suite: what every store has promised, one sentence a test.

A store's test file is five lines::

    from taskmq.testing.conformance import conformance
    from taskmq.transport.registry import open_store

    globals().update(conformance(lambda clock, place: open_store(f"sqlite:///{place}/q.db", clock=clock)))

The *factory* opens a store that reads its time from ``clock``. ``place`` is a new, empty directory; its name is as new,
so a server's store can use it as a prefix, schema or namespace: ``open_store("redis://127.0.0.1", namespace=place.name,
clock=clock)``. Called again with the same place, it opens a second store on the same data, also from other threads and
from forked processes; the suite does so only if the store says ``capabilities.shared`` or ``capabilities.durable``.
Whatever was stored is flushed at the end of each test.

The suite asks ``capabilities`` and ``limitations``, never ``name``. A scenario that the store names in ``limitations``
is skipped with the reason given there; naming a scenario that does not exist fails. A store that is being written can
be asked family by family: ``conformance(factory, supports=["publish", "order"])``; the default is all of ``FAMILIES``.
"""

from taskmq.testing.conformance.kit import Factory, Kit
from taskmq.testing.conformance.suite import FAMILIES, Scenario, conformance, run, scenarios

__all__ = ["FAMILIES", "Factory", "Kit", "Scenario", "conformance", "run", "scenarios"]
