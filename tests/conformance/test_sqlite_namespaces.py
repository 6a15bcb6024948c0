"""Namespaces that share one SQLite file are as far apart as two files."""

from taskmq.testing.conformance import conformance
from taskmq.transport.registry import open_store

FAMILIES = ("idempotency", "limits", "parking", "stats", "watch", "control", "locks", "workers", "lifecycle")
globals().update(
    conformance(
        lambda clock, place: open_store(
            f"sqlite:///{place.parent}/q.db?synchronous=off", namespace=place.name, clock=clock
        ),
        FAMILIES,
    )
)
