"""MariaDB keeps every promise of the conformance suite."""

from taskmq.testing.conformance import conformance
from tests.stores import STORES

globals().update(conformance(STORES["mariadb"]))
