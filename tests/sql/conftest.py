"""Servers for tests of the SQL stores beyond the conformance suite."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from taskmq.testing.sql_servers import PostgresServer, postgres_server
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store


@pytest.fixture(params=["postgresql", "postgresql-new"])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Each PostgreSQL that is tested."""
    return postgres_server(request.param)


@pytest.fixture
def url(server: PostgresServer) -> str:
    """An empty place on it."""
    return server.url(server.place(uuid.uuid4().hex))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store in that place."""
    store = open_store(url)
    yield store
    store.close()
