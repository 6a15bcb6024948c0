"""What goes wrong with PostgreSQL and no other server; the rest is in test_refusals.py and test_outages.py."""

from __future__ import annotations

import psycopg
import pytest

from taskmq.errors import TransportUnavailable
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.registry import open_store
from taskmq.transport.sql.postgresql.session import PgSession
from tests.sql.help import publish


def test_a_serialization_failure_is_run_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who asks for READ COMMITTED meets one; a server that is not quite PostgreSQL may send it all the same."""
    store = open_store(url)
    commit, failures = PgSession.commit, [3]

    def fail(session: PgSession) -> None:
        if failures[0]:
            failures[0] -= 1
            raise psycopg.errors.SerializationFailure("met")
        commit(session)

    monkeypatch.setattr(PgSession, "commit", fail)
    assert len(publish(store)) == 1
    failures[0] = 1000
    with pytest.raises(TransportUnavailable, match="nothing was stored"):
        publish(store)
    store.close()


def test_the_oldest_server_is_15() -> None:
    """The range that the docs promise."""
    ((version,),) = postgres_server("postgresql").execute("SHOW server_version_num")
    assert 150000 <= int(version) < 170000
