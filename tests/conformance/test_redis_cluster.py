"""A Redis cluster keeps every promise of the conformance suite but those it declares."""

from taskmq.testing.conformance import conformance
from tests.stores import STORES

globals().update(conformance(STORES["redis-cluster"]))
