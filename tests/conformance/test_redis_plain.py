"""Redis by plain scripts keeps the promises, too: a family for each script, and for what scripts include."""

from taskmq.testing.conformance import conformance
from tests.stores import STORES

FAMILIES = (
    *("publish", "idempotency", "settle", "retries", "leases", "cancel", "hold", "dead_letters", "limits", "gates"),
    *("rates", "turns", "runs", "stats", "workers", "locks", "control", "progress"),
)
globals().update(conformance(STORES["redis-plain"], FAMILIES))
