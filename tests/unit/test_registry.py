"""Which store a URL opens, and what is said when none does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from taskmq.errors import ConfigError
from taskmq.transport import registry
from taskmq.transport.registry import open_store
from taskmq.transport.sql.mysql.drivers import mysqldb_driver, pymysql_driver


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("carrier-pigeon://loft", "scheme must be one of mariadb://, memory://, mysql://, postgresql://, redis://"),
        ("taskmq.db", "scheme must be one of"),
        ("amqp://u:secret@h/", "this version has no amqp:// store yet"),
        ("memory://name", "write memory://"),
    ],
)
def test_a_url_that_opens_nothing_is_refused(url: str, words: str) -> None:
    """The message names the URL, never its password, and what would do."""
    with pytest.raises(ConfigError, match=words) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A store whose driver is not installed says which extra to install."""
    (tmp_path / "needs_a_driver.py").write_text("import no_such_driver")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(registry._STORES, "redis", "needs_a_driver:open_url")
    with pytest.raises(ConfigError, match=r"'no_such_driver', which is not installed: pip install taskmq\[redis\]"):
        open_store("redis://127.0.0.1")


@pytest.mark.parametrize(
    ("url", "driver", "module", "words"),
    [
        ("mysql+mysqldb://me@127.0.0.1/db", mysqldb_driver, "MySQLdb", "pip install mysqlclient, or write mysql://"),
        ("mariadb://me@127.0.0.1/db", pymysql_driver, "pymysql", r"pip install taskmq\[mysql\]"),
    ],
)
def test_a_missing_driver_of_mysql_is_told(
    monkeypatch: pytest.MonkeyPatch, url: str, driver: Any, module: str, words: str
) -> None:
    """Each URL says what to install for it."""
    monkeypatch.setitem(sys.modules, module, None)
    driver.cache_clear()
    with pytest.raises(ConfigError, match=words):
        open_store(url)
