"""PostgreSQL as behind a pooler in transaction mode – nothing prepared, nothing heard – keeps its promises."""

from functools import partial

from taskmq.testing.conformance import conformance
from tests.stores import STORES

globals().update(
    conformance(
        partial(STORES["postgresql"], prepared="off"),
        supports=("publish", "order", "turns", "settle", "leases", "limits", "watch", "processes"),
    )
)
