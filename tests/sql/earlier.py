"""A schema that exists only here – version 1, which knew no priorities – the step from it, and a worker of its time.

What a source without priorities goes through: its tasks get priority 0, so that they are dispatched when they fall
due, as before; the order of the new claim is an index that is built in a step of its own.

A generated column that is stored cannot be added without writing the whole table while nobody else may. So a migrated
table has what serves its readers alike: PostgreSQL plain columns that a trigger keeps, MariaDB columns that are
computed when they are read, and indexed.
"""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from typing import Any

import psycopg
import pymysql

from taskmq.ids import new_id
from taskmq.testing.mariadb_server import MariadbServer
from taskmq.testing.sql_fill import Server
from taskmq.transport.registry import open_schema, open_store
from taskmq.transport.sql.codes import COUNT_READY
from taskmq.transport.sql.migrations import Fill, Step
from taskmq.transport.sql.mysql.ddl import INDEXES
from taskmq.transport.sql.postgresql.ddl import statements
from tests.sql.help import message, publish_all

ORDER = {
    "dispatch_at": ("BIGINT", "{0}available_at - {0}priority * {0}aging_us"),
    "s1": (
        "BIGINT",
        "CASE WHEN {0}aging_us > 0 THEN {0}available_at - {0}priority * {0}aging_us ELSE 9 - {0}priority END",
    ),
    "s2": ("SMALLINT", "CASE WHEN {0}aging_us > 0 THEN {0}priority ELSE 0 END"),
}
"""The columns that hold a task's place in its line, and how they follow from the others."""
LINES = ("ix_taskmq_tasks_line", "ix_taskmq_tasks_parked", "ix_taskmq_tasks_parked_first")
"""The indexes over them."""
VERSIONS = Fill(table="taskmq_tasks", assignments="version=''", missing="version IS NULL")

_INDEXES = {text.split()[2]: text for text in statements() if text.startswith("CREATE INDEX")}
_TRIGGER = """
CREATE TRIGGER taskmq_order BEFORE INSERT OR UPDATE OF priority, aging_us, available_at ON taskmq_tasks
FOR EACH ROW EXECUTE FUNCTION taskmq_order()
"""
POSTGRESQL = Step(
    version=2,
    title="priorities",
    statements=(
        "ALTER TABLE taskmq_tasks ADD COLUMN IF NOT EXISTS priority SMALLINT NOT NULL DEFAULT 0, "
        "ADD COLUMN IF NOT EXISTS aging_us BIGINT NOT NULL DEFAULT 0, "
        + ", ".join(f"ADD COLUMN IF NOT EXISTS {name} {kind}" for name, (kind, _) in ORDER.items()),
        "ALTER TABLE taskmq_tasks DROP CONSTRAINT IF EXISTS ck_taskmq_tasks_priority",
        "ALTER TABLE taskmq_tasks ADD CONSTRAINT ck_taskmq_tasks_priority CHECK (priority BETWEEN 0 AND 9) NOT VALID",
        "CREATE OR REPLACE FUNCTION taskmq_order() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        + " ".join(f"NEW.{name} := {text.format('NEW.')};" for name, (_, text) in ORDER.items())
        + " RETURN NEW; END $$",
        "DROP TRIGGER IF EXISTS taskmq_order ON taskmq_tasks",
        _TRIGGER,
    ),
    fills=(
        Fill(
            table="taskmq_tasks",
            assignments=", ".join(f"{name}={text.format('')}" for name, (_, text) in ORDER.items()),
            missing="s1 IS NULL",
        ),
        VERSIONS,
    ),
    alone=(
        "ALTER TABLE taskmq_tasks VALIDATE CONSTRAINT ck_taskmq_tasks_priority",
        *(
            statement
            for name in LINES
            for statement in (
                f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
                _INDEXES[name].replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY"),
            )
        ),
    ),
    back=(
        "DROP TRIGGER IF EXISTS taskmq_order ON taskmq_tasks",
        "ALTER TABLE taskmq_tasks DROP COLUMN priority CASCADE, DROP COLUMN aging_us CASCADE, "
        + ", ".join(f"DROP COLUMN IF EXISTS {name}" for name in ORDER),
    ),
)
_CHECK = "CHECK (priority BETWEEN 0 AND 9)"  # as a constraint of the table it would have it copied
MARIADB = Step(
    version=2,
    title="priorities",
    statements=(
        f"ALTER TABLE taskmq_tasks ADD COLUMN priority SMALLINT NOT NULL DEFAULT 0 {_CHECK}, ALGORITHM=INSTANT",
        "ALTER TABLE taskmq_tasks ADD COLUMN aging_us BIGINT NOT NULL DEFAULT 0, ALGORITHM=INSTANT",
        *(
            f"ALTER TABLE taskmq_tasks ADD COLUMN {name} {kind} GENERATED ALWAYS AS ({text.format('')}) VIRTUAL, "
            "ALGORITHM=INSTANT"
            for name, (kind, text) in ORDER.items()
        ),
    ),
    fills=(VERSIONS,),
    alone=tuple(
        f"ALTER TABLE taskmq_tasks ADD {text}, ALGORITHM=NOCOPY, LOCK=NONE"
        for text in INDEXES["taskmq_tasks"]
        if text.split()[1] in LINES
    ),
    back=(
        *(f"ALTER TABLE taskmq_tasks DROP INDEX {name}" for name in LINES),
        *(f"ALTER TABLE taskmq_tasks DROP COLUMN {name}" for name in (*ORDER, "priority", "aging_us")),
    ),
)

_EARLIER_POSTGRESQL = (
    POSTGRESQL.back[-1],  # type: ignore[index]
    "CREATE INDEX ix_taskmq_tasks_first ON taskmq_tasks (lane, seq) WHERE state=1",
)
_EARLIER_MARIADB = (
    *MARIADB.back[: len(LINES)],  # type: ignore[index]
    *(f"ALTER TABLE taskmq_tasks DROP COLUMN {name}" for name in ORDER),
    "ALTER TABLE taskmq_tasks DROP CONSTRAINT ck_taskmq_tasks_priority",
    "ALTER TABLE taskmq_tasks DROP COLUMN priority, DROP COLUMN aging_us",
    "ALTER TABLE taskmq_tasks ADD INDEX ix_taskmq_tasks_first (lane, state, seq)",
)
_FILL = """
INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, available_at, max_attempts, created_at, handler, handler_id,
  body)
SELECT {first}+n, md5(concat('old', n)), q.queue_id, 1, -h.handler_id, n, 3, n, 'h', h.handler_id, '{{}}'
FROM {numbers} JOIN taskmq_queues q ON q.name='q' JOIN taskmq_handlers h USING (queue_id)
"""
FIRST = 100_000


def make_earlier(server: Server, place: str, tasks: int) -> None:
    """Schema 1 in an empty place, with so many ready tasks in the queue ``q``."""
    open_schema(server.url(place)).up()
    with closing(open_store(server.url(place))) as store:
        task = message()
        publish_all(store, task)
        store.cancel([task.id])
    mariadb = isinstance(server, MariadbServer)
    for statement in _EARLIER_MARIADB if mariadb else _EARLIER_POSTGRESQL:
        server.execute(statement, place)
    server.execute(_FILL.format(first=FIRST, numbers=server.numbers(tasks)), place)
    after = FIRST + tasks + 1
    server.execute(
        f"ALTER TABLE taskmq_seqs AUTO_INCREMENT={after}" if mariadb else f"SELECT setval('taskmq_seq', {after})", place
    )
    server.execute("UPDATE taskmq_schema SET version=1", place)


_INSERT = """
INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, available_at, max_attempts, created_at, handler, handler_id,
  body) SELECT %s, %s, q.queue_id, 1, -h.handler_id, 1, 3, 1, 'h', h.handler_id, '{}'
FROM taskmq_queues q JOIN taskmq_handlers h USING (queue_id) WHERE q.name='q'
"""
_COUNT = f"""
INSERT INTO taskmq_count_deltas AS c(handler_id, kind, priority, slot, n)
SELECT handler_id, {COUNT_READY}, 0, %s, %s FROM taskmq_handlers WHERE true
ON CONFLICT (handler_id, kind, priority, slot) DO UPDATE SET n=c.n+excluded.n
"""
_COUNT_MARIADB = f"""
INSERT INTO taskmq_count_deltas(handler_id, kind, priority, slot, n)
SELECT handler_id, {COUNT_READY}, 0, %s, %s FROM taskmq_handlers
ON DUPLICATE KEY UPDATE n=taskmq_count_deltas.n+VALUES(n)
"""


class EarlierWorker:
    """What a process of version 1 sends, as far as a change of the schema can be in its way."""

    _slots = itertools.count(5)
    """Each has a row of counts of its own."""

    def __init__(self, server: Server, place: str) -> None:
        self._mariadb = isinstance(server, MariadbServer)
        self._slot = next(self._slots) % 16
        self.connection: Any
        if isinstance(server, MariadbServer):
            self.connection = pymysql.connect(unix_socket=server.socket, user="root", database=place)
        else:
            self.connection = psycopg.connect(server.dsn(), options=f"-csearch_path={place}")
        self._cursor = self.connection.cursor()
        self.longest = 0.0
        """Seconds of its slowest transaction."""
        self.published: list[str] = []
        self.done: list[int] = []

    def _run(self, statement: str, *parameters: Any) -> list[Any]:
        self._cursor.execute(statement, parameters)
        return list(self._cursor.fetchall()) if self._cursor.description else []

    def publish(self) -> None:
        """One task."""
        began, task = time.monotonic(), new_id()
        if self._mariadb:
            self._run("INSERT INTO taskmq_seqs() VALUES ()")
            seq = self._cursor.lastrowid
            self._run("DELETE FROM taskmq_seqs WHERE seq=%s", seq)
        else:
            ((seq,),) = self._run("SELECT nextval('taskmq_seq')")
        self._run(_INSERT, seq, task)
        self._count(1)
        self._end(began)
        self.published.append(task)

    def work(self, n: int = 10) -> None:
        """Claim some tasks in the order of acceptance, and end them."""
        began = time.monotonic()
        self._run("SELECT 1 FROM taskmq_queues WHERE name='q' FOR UPDATE")
        hint = "FORCE INDEX (ix_taskmq_tasks_first)" if self._mariadb else ""
        rows = self._run(
            f"SELECT seq FROM taskmq_tasks {hint} WHERE lane=(SELECT -handler_id FROM taskmq_handlers) AND state=1 "
            "ORDER BY seq LIMIT %s FOR UPDATE",
            n,
        )
        for (seq,) in rows:
            self._run(
                "UPDATE taskmq_tasks SET state=2, due_at=1152921504606846976, epoch=epoch+1, worker='old' WHERE seq=%s",
                seq,
            )
        self._end(began)
        began = time.monotonic()
        for (seq,) in rows:
            self._run("DELETE FROM taskmq_tasks WHERE seq=%s AND state=2", seq)
        self._count(-len(rows))
        self._end(began)
        self.done += [seq for (seq,) in rows]

    def _count(self, tasks: int) -> None:
        self._run(_COUNT_MARIADB if self._mariadb else _COUNT, self._slot, tasks)

    def _end(self, began: float) -> None:
        self.connection.commit()
        self.longest = max(self.longest, time.monotonic() - began)
