"""What PostgreSQL does for a claim, a settlement and a publish when there are hundreds of thousands of tasks.

Plans are made once a connection and kept, so the worst case is a connection that planned everything while the tables
were empty. The bad forms that were measured, and why they are not in the code:

* ``UPDATE … FROM (SELECT … LIMIT)``: hash join and a scan of the table, 75 ms; ``IN (SELECT … LIMIT)``: 35 ms
* the state as a parameter: the partial index cannot be used, 154 ms
* the state in a statement that finds its tasks by ``seq``: the partial index of the line is walked instead, 32 ms
* a filter on ``available_at`` instead of the state of a task that is due later: 115 ms with a million of them
* a parameter in LIMIT with JIT on: the estimate of 10 % of the table makes every claim compile, 10–150 ms
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from taskmq.queue import QueueConfig
from taskmq.testing.sql_servers import PostgresServer, postgres_server
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store
from taskmq.transport.sql.fragments import claimable
from taskmq.transport.sql.postgresql import hot, plain
from taskmq.transport.sql.postgresql.settings import PLANS
from taskmq.transport.sql.postgresql.words import COUNTS, NEXT_DUE, WORDS
from taskmq.transport.sql.queries import DUE_RECORDS
from taskmq.transport.sql.rare import OLD_RECORDS
from tests.sql.help import churn, message, publish_all, work_off

READY, LATER, PARTITIONS = 150_000, 100_000, 50_000

FILL = f"""
INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, priority, aging_us, available_at, due_at, max_attempts,
  created_at, handler, handler_id, body)
SELECT nextval('taskmq_seq'), md5(n::text), q.queue_id, CASE WHEN n>{READY} THEN 0 ELSE 1 END,
  CASE WHEN n>{READY} THEN NULL ELSE -h.handler_id END, n%10, q.aging_us, n,
  CASE WHEN n>{READY} THEN (1::bigint<<60)+n END, 3, n, 'h', h.handler_id, '{{}}'
FROM generate_series(1, {READY + LATER}) n JOIN taskmq_queues q ON q.name=CASE WHEN n%2=0 THEN 'plain' ELSE 'aging' END
JOIN taskmq_handlers h USING (queue_id);
INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, priority, available_at, max_attempts, created_at, handler,
  handler_id, body, code)
SELECT 1000000+n, md5('p'||n), q.queue_id, 1, 1000000+n, 0, n, 3, n, 'h', h.handler_id, '{{}}', '!'||n
FROM generate_series(1, {PARTITIONS}) n, taskmq_queues q JOIN taskmq_handlers h USING (queue_id) WHERE q.name='parts';
INSERT INTO taskmq_flows(flow_id, queue_id, code, h1, h2, hseq, hhandler, k2, k3, tag, elig)
SELECT seq, queue_id, code, s1, s2, seq, handler_id, seq, 0, seq, 1 FROM taskmq_tasks WHERE code IS NOT NULL;
UPDATE taskmq_queues SET flows={PARTITIONS}, j=2000000 WHERE name='parts';
"""


QUEUES = ("plain", "aging", "parts")


def _work(store: Store, rounds: int) -> None:
    """Every verb of the hot path, on each kind of queue."""
    for number in range(rounds):
        for queue in QUEUES:
            churn(store, 1, queue, partition=f"!new{number}-" if queue == "parts" else None)


SHAPES = [("postgresql", "never"), ("postgresql", "drained"), ("postgresql-new", "drained")]


@pytest.fixture(scope="module", params=SHAPES, ids=" ".join)
def filled(request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, str, Store]]:
    """300,000 tasks, and a store whose connections planned everything before there were any.

    The tables were never analysed, or when they had just been drained: the statistics then say that they are empty.
    """
    kind, analysed = request.param
    server = postgres_server(kind)
    schema = server.place(f"plans-{uuid.uuid4().hex}")
    store = open_store(server.url(schema, pool="1"))
    store.configure_queues({"aging": QueueConfig(order="aging")})
    for queue in QUEUES:
        for number in range(3):
            publish_all(store, *(message(queue, f"!{number}-{n}" if queue == "parts" else None) for n in range(20)))
    _work(store, 2)
    for queue in QUEUES:
        work_off(store, queue)
    with psycopg.connect(server.dsn(), autocommit=True, options=f"-csearch_path={schema}") as connection:
        if analysed == "drained":
            connection.execute("ANALYZE")
        connection.execute(FILL, prepare=False)
    yield server, schema, store
    store.close()


def _rows_read(server: PostgresServer, schema: str) -> dict[str, int]:
    rows = server.execute(
        f"SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname='{schema}' UNION ALL "
        f"SELECT relname||' (whole)', seq_tup_read FROM pg_stat_user_tables WHERE schemaname='{schema}'"
    )
    return {name: int(read or 0) for name, read in rows}


def test_work_among_many_tasks_reads_what_it_needs(filled: tuple[PostgresServer, str, Store]) -> None:
    """Claims, settlements and publishes read a few times as many rows as they move, and no table as a whole."""
    server, schema, store = filled
    rounds, tasks = 20, 20 * len(QUEUES)
    before = _rows_read(server, schema)
    _work(store, rounds)
    store.close()  # its sessions hand in their statistics when they end
    after = _rows_read(server, schema)
    read = {name: (after[name] - before.get(name, 0)) / (rounds * tasks) for name in after}
    whole = {name: rows for name, rows in read.items() if name.endswith("(whole)") and rows > 1}
    assert whole == {}, "tables that were read as a whole, rows a task"
    greedy = {name: rows for name, rows in read.items() if rows > 25}
    assert greedy == {}, "rows read from an index, for each task that was moved"


STATEMENTS: dict[str, tuple[str, dict[str, Any] | tuple[Any, ...], str]] = {
    "the line of a handler": (hot.LINE, (-1, 10, 0), "ix_taskmq_tasks_line"),
    "the first of several lines": (hot.HEADS, ("{-1,-2}", 10, 0), "ix_taskmq_tasks_line"),
    "the first of a queue's lines": (
        hot.FIRST_LINES,
        {"namespace": "default", "names": ["plain"], "look": 10},
        "ix_taskmq_tasks_line",
    ),
    "flows in turn": (hot.FLOWS_IN_TURN, (2, 10, 0), "ix_taskmq_flows_turn"),
    "the first flows of queues": (
        hot.FIRST_FLOWS,
        {"namespace": "default", "names": ["parts"], "look": 10},
        "ix_taskmq_flows_turn",
    ),
    "flows by their codes": (hot.FLOWS_BY_CODE, ("{!1,!2}", 2), "uq_taskmq_flows_code"),
    "flows of a handler": (hot.FLOWS_OF_HANDLER, (2, 10, 0), "ix_taskmq_flows_of_handler"),
    "the claim": (hot.CLAIM, ("{1,2,3}", "{f,f,f}", 1, "w", 2), "taskmq_tasks_pkey"),
    "what is due": (hot.DUE_TASKS, (1, 0, 10), "ix_taskmq_tasks_due"),
    "promotion": (hot.MAKE_READY, ("{1,2}", "{-1,-1}", "{1,1}"), "taskmq_tasks_pkey"),
    "blocked flows that are due": (hot.FLOWS_DUE, (2, 0, 10), "ix_taskmq_flows_due"),
    "leases that have ended": (hot.ENDED_LEASES, {"queue": 1, "now": 0, "last": 9}, "ix_taskmq_tasks_lease"),
    "records to be deleted": (
        WORDS.text(OLD_RECORDS + WORDS.skip),
        {"now": 0, "limit": 10},
        "ix_taskmq_history_delete",
    ),
    "a look for records to be deleted": (WORDS.text(DUE_RECORDS), {"now": 0}, "ix_taskmq_history_delete"),
    "what has expired": (hot.EXPIRED, (1, 0, 10), "ix_taskmq_tasks_expiry"),
    "tasks that a settlement holds": (hot.BY_SEQ, ("{1,2}", "default"), "taskmq_tasks_pkey"),
    "the claim of the short way": (
        plain.CLAIM_PLAIN,
        {"namespace": "default", "name": "plain", "limit": 10, "worker": "w", "lease": 1, "batch": 2, "now": 0},
        "ix_taskmq_tasks_line",
    ),
    "the success of the short way": (
        plain.SUCCEED_PLAIN,
        ("default", ["plain"], '[{"seq": 1, "id": "1", "epoch": 1}]', 1, 0, 0, 0),
        "taskmq_tasks_pkey",
    ),
    "the publish of the short way": (
        plain.PUBLISH_PLAIN,
        {"namespace": "default", "names": ["plain"], "rows": "[]", "ids": ["1"], "now": 0, "slot": 1},
        "ix_taskmq_tasks_id",
    ),
    "a look for work": (
        WORDS.text(claimable(COUNTS)),
        {"namespace": "default", "names": ["plain"], "now": 0},
        "ix_taskmq_tasks_line",
    ),
    "the next due time": (NEXT_DUE, {"namespace": "default", "names": ["plain"], "now": 0}, "ix_taskmq_tasks_due"),
}


@pytest.mark.parametrize("analyzed", [False, True], ids=["old statistics", "new statistics"])
def test_statements_walk_their_indexes_in_order(filled: tuple[PostgresServer, str, Store], analyzed: bool) -> None:
    """Their generic plans are index ranges in the order of the claim: no sort of tasks or flows, no sequential scan."""
    server, schema, _ = filled
    options = " ".join(f"-c {name}={value}" for name, value in {**PLANS, "search_path": schema}.items())
    with psycopg.connect(server.dsn(), autocommit=True, options=options) as connection:
        if analyzed:
            connection.execute("ANALYZE taskmq_tasks, taskmq_flows, taskmq_queues, taskmq_handlers")
        plans = {what: _explain(connection, text, values) for what, (text, values, _) in STATEMENTS.items()}
    wrong = {what: plan for what, plan in plans.items() if not _is_a_walk(what, plan)}
    assert wrong == {}


def _is_a_walk(what: str, plan: str) -> bool:
    """Whether it uses the index, reads no table as a whole, and sorts nothing that may be long."""
    # What has the same due time is sorted, once the index has brought it in the order of that.
    plan = re.sub(r"Incremental Sort.*\n.*Sort Key.*", "", plan)
    bad = r"Seq Scan on taskmq_(tasks|flows|history)|Bitmap|Hash Join|Materialize"
    if what != "the claim of the short way":  # which sorts the few heads of all lines that it has read
        bad += "|Sort Key: .*(s1|h1|due_at)"
    return STATEMENTS[what][2] in plan and not re.search(bad, plan)


def _explain(connection: psycopg.Connection[Any], text: str, parameters: Any) -> str:
    """The generic plan, with the types that the store's own numbers have."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match[1] or str(len(names))
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    statement = re.sub(r"%(?:\((\w+)\))?s", number, text)
    values = [parameters[name] for name in names] if isinstance(parameters, dict) else list(parameters)
    connection.execute(f"PREPARE looked AS {statement}", prepare=False)
    shown = ", ".join(_literal(value) for value in values)
    rows = connection.execute(f"EXPLAIN EXECUTE looked({shown})", prepare=False).fetchall()
    connection.execute("DEALLOCATE looked")
    return "\n".join(row[0] for row in rows)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        value = "{" + ",".join(value) + "}"
    return f"'{value}'"
