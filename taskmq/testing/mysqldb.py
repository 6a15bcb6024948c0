"""mysqlclient for tests: as it is installed, else Debian's ``python3-mysqldb``, which saves a compiler."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from taskmq.testing.servers import missing

_DEBIAN = Path("/usr/lib/python3/dist-packages/MySQLdb")


@cache
def need_mysqldb() -> None:
    """Make ``import MySQLdb`` work.

    Where there is none, a test is skipped on a laptop and fails with CI=true; Debian's is for Debian's own Python, and
    with another one a test is skipped.
    """
    if find_spec("MySQLdb") is not None:
        return
    spec = spec_from_file_location("MySQLdb", _DEBIAN / "__init__.py", submodule_search_locations=[str(_DEBIAN)])
    if not _DEBIAN.exists() or spec is None or spec.loader is None:
        missing("mysqlclient", "apt-get install python3-mysqldb, or pip install mysqlclient")
    sys.modules["MySQLdb"] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        del sys.modules["MySQLdb"]
        pytest.skip(f"python3-mysqldb is for another Python ({error}); pip install mysqlclient")
