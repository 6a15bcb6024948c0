"""The memory store keeps every promise of the conformance suite."""

from taskmq.testing.conformance import conformance
from taskmq.transport.registry import open_store

globals().update(conformance(lambda clock, place: open_store("memory://", clock=clock)))
