"""What MariaDB does for a claim, a settlement and a publish when there are hundreds of thousands of tasks.

The server plans each statement anew, from statistics that may be of an empty table. The bad forms that were measured,
and why they are not in the code:

* ``UPDATE … ORDER BY … LIMIT``: it changes a column of its own index, so it sorts first, 93 ms at 100,000 tasks
* ``EXISTS`` in a look for work, without the switches of connection.py: a temporary table of all that is ready, 92 ms
* ``min(s1)`` instead of ``ORDER BY … LIMIT 1``: 61 ms
* ``IN`` with the numbers of tasks in what writes: a small table is scanned, and a scan waits for others' rows
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from taskmq.queue import QueueConfig
from taskmq.testing.mariadb_server import MariadbServer, mariadb_server
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store
from taskmq.transport.sql.fragments import claimable
from taskmq.transport.sql.mysql import hot
from taskmq.transport.sql.mysql.connection import connect
from taskmq.transport.sql.mysql.drivers import MysqlCursor
from taskmq.transport.sql.mysql.settings import Settings
from taskmq.transport.sql.mysql.words import COUNTS, NEXT_DUE, WORDS, listed, records
from taskmq.transport.sql.queries import DUE_RECORDS
from taskmq.transport.sql.rare import OLD_RECORDS
from tests.sql.help import churn, claim, message, publish_all
from tests.sql.reads import rows_read

READY, LATER, PARTITIONS = 150_000, 100_000, 50_000
FAR = 1 << 60

FILL = (
    f"""INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, priority, aging_us, available_at, due_at, max_attempts,
      created_at, handler, handler_id, body)
    SELECT 1000+s.seq, md5(concat(q.name, s.seq)), q.queue_id, IF(s.seq>{READY}, 0, 1),
      IF(s.seq>{READY}, NULL, -h.handler_id), s.seq%10, q.aging_us, s.seq, IF(s.seq>{READY}, {FAR}+s.seq, NULL), 3,
      s.seq, 'h', h.handler_id, '{{}}'
    FROM seq_1_to_{READY + LATER} s JOIN taskmq_queues q ON q.name=IF(s.seq%2, 'plain', 'aging')
      JOIN taskmq_handlers h USING (queue_id)""",
    f"""INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, priority, available_at, max_attempts, created_at,
      handler, handler_id, body, code)
    SELECT 1000000+s.seq, md5(concat('p', s.seq)), q.queue_id, 1, 1000000+s.seq, 0, s.seq, 3, s.seq, 'h', h.handler_id,
      '{{}}', concat('!', s.seq)
    FROM seq_1_to_{PARTITIONS} s JOIN taskmq_queues q ON q.name='parts' JOIN taskmq_handlers h USING (queue_id)""",
    """INSERT INTO taskmq_flows(flow_id, queue_id, code, h1, h2, hseq, hhandler, k2, k3, tag, elig)
    SELECT seq, queue_id, code, s1, s2, seq, handler_id, seq, 0, seq, 1 FROM taskmq_tasks WHERE seq>1000000""",
    f"UPDATE taskmq_queues SET flows={PARTITIONS}, j=2000000 WHERE name='parts'",
    "ALTER TABLE taskmq_seqs AUTO_INCREMENT=3000000",
)
QUEUES = ("plain", "aging", "parts")


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[MariadbServer, str, Store]]:
    """300,000 tasks, and statistics of when there were none."""
    server = mariadb_server()
    database = server.place(f"plans-{uuid.uuid4().hex}")
    store = open_store(server.url(database, pool="1"))
    store.configure_queues({"aging": QueueConfig(order="aging")})
    publish_all(store, *(message(queue, "!p" if queue == "parts" else None) for queue in QUEUES))
    for queue in QUEUES:
        churn(store, 1, queue)
        while held := claim(store, 50, queue):
            churn(store, 0, queue, held)
    with closing(connect(Settings(server.url(database)))) as connection, connection.cursor() as cursor:
        for table in ("tasks", "flows", "history"):
            cursor.execute(f"ALTER TABLE taskmq_{table} STATS_AUTO_RECALC=0")
            cursor.execute(f"ANALYZE TABLE taskmq_{table}")
            cursor.fetchall()
        cursor.execute("SET unique_checks=0")
        for statement in FILL:
            cursor.execute(statement)
    yield server, database, store
    store.close()


def test_work_among_many_tasks_reads_what_it_needs(filled: tuple[MariadbServer, str, Store]) -> None:
    """Claims, settlements and publishes read a few times as many rows as they move, however many there are."""
    server, database, _ = filled
    rounds, batch = 10, 10
    for queue in QUEUES:
        partition = "!new" if queue == "parts" else None
        read = rows_read(server, database, lambda store, q=queue, p=partition: churn(store, rounds, q, partition=p))
        assert {name: rows for name, rows in read.items() if rows > 25 * rounds * batch} == {}
        assert sum(read.values()) > rounds * batch, "nothing was counted"


SEQS, KEYS = listed((1001, 1002)), records(("seq", "position", "run"), [(1001, 0, 0), (1002, 1, 0)])
NAMES = {"namespace": "default", "names": ["plain"], "now": 0}
ONE_HEAD = hot.HEADS.strip()

LINE = "ix_taskmq_tasks_(line|parked_first|parked_last)"
"""Each of them begins with lane and state, which is all that a look needs."""

# "plain" stands for the number of that queue, "of plain" for that of its handler, "-plain" for its line.
STATEMENTS: dict[str, tuple[str, Any, str]] = {
    "the line of a handler": (hot.LINE, ("-plain", 10, 0), "ix_taskmq_tasks_line"),
    "the line of an aging queue": (hot.LINE, ("-aging", 10, 0), "ix_taskmq_tasks_line"),
    "the first of several lines": (
        f"{ONE_HEAD} UNION ALL {ONE_HEAD}",
        ("-plain", 10, 0, "-aging", 10, 0),
        "ix_taskmq_tasks_line",
    ),
    "flows in turn": (hot.FLOWS_IN_TURN, ("parts", 10, 0), "ix_taskmq_flows_turn"),
    "flows of a handler": (hot.FLOWS_OF_HANDLER, ("of parts", 10, 0), "ix_taskmq_flows_of_handler"),
    "flows by their codes": (hot.FLOWS_BY_CODE, ("parts", ["!1", "!2"]), "uq_taskmq_flows_code"),
    "blocked flows that are due": (hot.FLOWS_DUE, ("parts", 5, 10), "ix_taskmq_flows_due"),
    "the claim": (hot.CLAIM.format(KEYS[0]), (*KEYS[1], 1, "w", 2), "PRIMARY"),
    "what was claimed": (hot.CLAIMED.format("(1001, 1002)"), (), "PRIMARY"),
    "what is due": (hot.DUE_TASKS, ("plain", FAR + READY + 5000, 10), "ix_taskmq_tasks_due"),
    "promotion": (
        hot.MAKE_READY.format(records(("seq", "lane", "state"), [(1001, -1, 1)])[0]),
        (1001, -1, 1),
        "PRIMARY",
    ),
    "leases that have ended": (hot.LAST_END, ("plain", 5, 9), "ix_taskmq_tasks_due"),
    "what has expired": (hot.EXPIRED, ("plain", 5, 10), "ix_taskmq_tasks_expiry"),
    "tasks that a settlement holds": (hot.BY_SEQ.format("(1001, 1002)"), ("default",), "PRIMARY"),
    "tasks that end": (hot.DELETE_TASKS.format(SEQS), (), "PRIMARY"),
    "records to be deleted": (
        WORDS.text(OLD_RECORDS + WORDS.skip),
        {"now": 5, "limit": 10},
        "ix_taskmq_history_delete",
    ),
    "a look for records to be deleted": (WORDS.text(DUE_RECORDS), {"now": 5}, "ix_taskmq_history_delete"),
    "a look for work": (WORDS.text(claimable(COUNTS)), NAMES, LINE),
    "the next due time": (NEXT_DUE, NAMES, "ix_taskmq_tasks_due"),
}
OURS = ("taskmq_tasks", "taskmq_flows", "taskmq_history", "t", "f", "d", "h")


@pytest.mark.parametrize("analyzed", [False, True], ids=["old statistics", "new statistics"])
def test_statements_walk_their_indexes_in_order(filled: tuple[MariadbServer, str, Store], analyzed: bool) -> None:
    """Index ranges in the order of the claim: no sort, no temporary table, no table or index read as a whole."""
    server, database, _ = filled
    with closing(connect(Settings(server.url(database)))) as connection, connection.cursor() as cursor:
        if analyzed:
            cursor.execute("ANALYZE TABLE taskmq_tasks, taskmq_flows, taskmq_history, taskmq_queues, taskmq_handlers")
            cursor.fetchall()
        cursor.execute("SELECT q.name, queue_id, handler_id FROM taskmq_queues q JOIN taskmq_handlers USING (queue_id)")
        numbers: dict[Any, int] = {}
        for name, queue, handler in cursor.fetchall():
            numbers.update({name: queue, f"of {name}": handler, f"-{name}": -handler})
        plans = {what: _explain(cursor, text, values, numbers) for what, (text, values, _) in STATEMENTS.items()}
    wrong = {what: plan for what, plan in plans.items() if not _is_a_walk(plan, STATEMENTS[what][2])}
    assert wrong == {}


def _explain(cursor: MysqlCursor, text: str, parameters: Any, numbers: dict[Any, int]) -> list[dict[str, Any]]:
    if isinstance(parameters, tuple):
        parameters = [numbers.get(value, value) if isinstance(value, str) else value for value in parameters]
    cursor.execute("EXPLAIN " + (cursor.mogrify(text, parameters) if parameters else text))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _is_a_walk(plan: list[dict[str, Any]], index: str) -> bool:
    """Whether it uses the index, reads none of our large tables as a whole, and sorts nothing of them."""
    ours = [row for row in plan if row["table"] in OURS]
    whole = any(row["type"] in ("ALL", "index") or re.search("filesort|temporary", row["Extra"] or "") for row in ours)
    return not whole and any(re.fullmatch(index, row["key"] or "") for row in plan)
