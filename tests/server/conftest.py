from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.kit import Running, Socket, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for a module's tests; each makes what it needs."""
    with running(tmp_path_factory.mktemp("server"), request_rate=1e6, request_burst=1_000_000) as made:
        yield made


@pytest.fixture
def own(server: Running, request: pytest.FixtureRequest) -> Iterator[Running]:
    """An environment for one test."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    tenant = server.tenant(name)
    yield tenant
    tenant.http.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Running]:
    """A server for one test, which it may stop."""
    with running(tmp_path, request_rate=1e6, request_burst=1_000_000) as made:
        yield made


@pytest.fixture
def worker(own: Running) -> Iterator[Socket]:
    """A worker that has said hello."""
    with Socket(own) as socket:
        assert socket.hello()["type"] == "welcome"
        yield socket
