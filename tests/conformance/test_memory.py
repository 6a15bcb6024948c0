"""The memory store keeps every promise of the conformance suite."""

from taskmq.testing.conformance import conformance
from taskmq.transport.registry import open_store

LACKS = ("durable", "shared")  # it lives in this process
globals().update(conformance(lambda clock, place: open_store("memory://", clock=clock), lacks=LACKS))
