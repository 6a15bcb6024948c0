"""What PostgreSQL reads of the idempotency keys, whatever its statistics say of them, and whenever they were taken.

Left to autovacuum it is a matter of luck which of these are met. Bad were those "of pages without a row" – all of them
deleted, or not yet committed, when ANALYZE or vacuum came: then the table counts as one row, however large it grows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from taskmq.codec import Envelope, encode
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.testing.sql_fill import fill_keys, register
from taskmq.testing.sql_servers import PostgresServer
from taskmq.transport.base import Maintain
from taskmq.transport.registry import open_store
from taskmq.transport.sql.codes import SHARED_BATCH as BATCH
from tests.sql.help import acknowledge, claim, publish_all
from tests.sql.reads import rows_read
from tests.sql.sides import shared

KEYS = 40 * BATCH
ANALYZE = "ANALYZE taskmq_keys"
DELETE = "DELETE FROM taskmq_keys"
STATISTICS: dict[str, Sequence[str | int]] = {
    "none": [KEYS],
    "of an empty table": [ANALYZE, KEYS],
    "of one row": [1, ANALYZE, DELETE, KEYS],
    "of pages without a row": [KEYS, DELETE, ANALYZE, KEYS],
    "of pages without a row, vacuumed": [KEYS, DELETE, "VACUUM (TRUNCATE off, ANALYZE) taskmq_keys", KEYS],
    "drained": [KEYS, DELETE, f"VACUUM {ANALYZE}", KEYS],
    "of half of it": [KEYS // 2, ANALYZE, DELETE, KEYS],
    "of today": [KEYS, ANALYZE],
}
"""What happens to the table, in order; a number is so many new keys, whose time is over."""


@pytest.fixture(scope="module", params=["postgresql", "postgresql-new"])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    side: Any = shared(request.param).server
    assert isinstance(side, PostgresServer)
    return side


@pytest.fixture(params=STATISTICS)
def place(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    schema = server.place(f"keys-{uuid.uuid4().hex}")
    register(server, schema, "q", ("h",))
    server.execute("ALTER TABLE taskmq_keys SET (autovacuum_enabled=off)", schema)
    server.execute("TRUNCATE taskmq_keys", schema)
    server.execute("DELETE FROM pg_statistic WHERE starelid='taskmq_keys'::regclass", schema)
    for step in STATISTICS[request.param]:
        if isinstance(step, int):
            fill_keys(server, schema, "q", step, 1)
        else:
            server.execute(step, schema)
    yield schema
    server.execute("TRUNCATE taskmq_keys", schema)  # or whoever has the place next walks over what was deleted
    server.execute("ALTER TABLE taskmq_keys RESET (autovacuum_enabled)", schema)


def keyed(key: str) -> Message:
    body = encode(Envelope())
    return Message(id=new_id(), queue="q", handler="h", body=body, key=key, key_until="finished")


def test_statistics_do_not_decide_what_is_read_of_the_keys(server: PostgresServer, place: str) -> None:
    """Taking ten keys, looking at them and freeing them reads only them; deleting a batch, only the batch."""
    names = [f"new{n}" for n in range(10)]

    def ten(store: Any) -> None:
        publish_all(store, *map(keyed, names))
        assert store.keyed("q", names).keys() == set(names)
        assert all(acknowledge(store, claim(store)))
        assert store.keyed("q", names) == {}

    read = rows_read(server, place, ten)
    assert 20 <= read.pop("taskmq_keys_pkey") <= 50  # found by the look and by the settlement
    assert {name: rows for name, rows in read.items() if "keys" in name and rows} == {}

    read = rows_read(server, place, lambda store: store.maintain(Maintain()))
    assert BATCH <= read.pop("ix_taskmq_keys_expiry") <= 5 * BATCH  # and what was deleted before vacuum came
    assert {name: rows for name, rows in read.items() if "keys" in name and rows} == {}
    assert server.execute(f"SELECT count(*) FROM taskmq_keys WHERE expires_at>{BATCH}", place) == [(KEYS - BATCH,)]


def test_a_key_that_is_taken_again_just_now_stays(server: PostgresServer) -> None:
    """Deleting keys whose time is over does not wait for who takes one of them, and leaves it out."""
    schema = server.place(f"taken-{uuid.uuid4().hex}")
    register(server, schema, "q", ("h",))
    fill_keys(server, schema, "q", 3, 1)
    options = f"-csearch_path={schema}"
    with closing(open_store(server.url(schema))) as store, psycopg.connect(server.dsn(), options=options) as other:
        other.execute("UPDATE taskmq_keys SET expires_at=NULL WHERE idem_key='own2'")
        store.maintain(Maintain())
        assert server.execute("SELECT idem_key FROM taskmq_keys", schema) == [("own2",)]
        other.commit()
        store.maintain(Maintain())
    assert server.execute("SELECT idem_key FROM taskmq_keys", schema) == [("own2",)]
