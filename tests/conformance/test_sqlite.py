"""The SQLite store keeps every promise of the conformance suite."""

from taskmq.testing.conformance import conformance
from taskmq.transport.registry import open_store

globals().update(conformance(lambda clock, place: open_store(f"sqlite:///{place}/q.db?synchronous=off", clock=clock)))
