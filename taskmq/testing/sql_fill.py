"""Hundreds of thousands of tasks in a database server, by one statement each: publishing them would take minutes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from taskmq.codec import Envelope, encode
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.testing.mariadb_server import MariadbServer
from taskmq.testing.sql_servers import PostgresServer
from taskmq.transport.base import Publish
from taskmq.transport.registry import open_store
from taskmq.transport.sql.codes import COUNT_READY, READY, SUCCEEDED

Server = PostgresServer | MariadbServer

_TASKS = f"""
INSERT INTO taskmq_tasks(seq, id, queue_id, state, lane, priority, available_at, max_attempts, created_at, handler,
  handler_id, body, code)
SELECT {{first}}+n, md5(concat('{{queue}}', {{first}}+n)), q.queue_id, {READY}, {{lane}}, 0, 1, 3, 1, h.name,
  h.handler_id, '{{{{}}}}', {{code}}
FROM {{numbers}} JOIN taskmq_queues q ON q.name='{{queue}}'
  JOIN taskmq_handlers h ON h.queue_id=q.queue_id AND h.name={{handler}} AND h.keyed=0
"""
_FLOWS = """
INSERT INTO taskmq_flows(flow_id, queue_id, code, h1, h2, hseq, hhandler, k2, k3, tag, elig)
SELECT seq, queue_id, code, s1, s2, seq, handler_id, seq, 0, seq, 1 FROM taskmq_tasks
WHERE code IS NOT NULL AND seq>{first} AND seq<={last}
"""
_KNOWN = """
UPDATE taskmq_queues SET flows=flows+{count}, j={last}, v=0 WHERE name='{queue}'
"""
_COUNTS = f"""
INSERT INTO taskmq_count_deltas(handler_id, kind, priority, slot, n)
SELECT handler_id, {COUNT_READY}, 0, 0, count(*) FROM taskmq_tasks WHERE seq>{{first}} AND seq<={{last}} GROUP BY 1
"""
_HISTORY = f"""
INSERT INTO taskmq_history(id, queue_id, state, seq, priority, aging_us, available_at, epoch, attempts, max_attempts,
  replays, created_at, finished_at, delete_at, handler, handler_id, body, idem_key, key_mode)
SELECT md5(concat('ended', n)), q.queue_id, {SUCCEEDED}, n, 0, 0, 1, 1, 1, 3, 0, 1, 1, {{delete_at}}+n, h.name,
  h.handler_id, '{{{{}}}}', concat('key', n), 0
FROM {{numbers}} JOIN taskmq_queues q ON q.name='{{queue}}' JOIN taskmq_handlers h USING (queue_id) WHERE h.keyed=0
"""
_KEYS = """
INSERT INTO taskmq_keys(queue_id, idem_key, task_id, digest, expires_at)
SELECT queue_id, {prefix}, {task}, '', {expires} FROM {numbers} JOIN taskmq_queues q ON q.name='{queue}'
"""


def register(server: Server, place: str, queue: str, handlers: Sequence[str]) -> None:
    """Make the queue know the handlers, as one published task of each does; they are cancelled again."""
    with closing(open_store(server.url(place))) as store:
        for name in handlers:
            task = Message(id=new_id(), queue=queue, handler=name, body=encode(Envelope()))
            store.publish(Publish(messages=[task]))
            store.cancel([task.id])


def fill_tasks(
    server: Server, place: str, queue: str, count: int, handlers: Sequence[str] = ("h",), *, partitioned: bool = False
) -> None:
    """So many ready tasks, of these handlers in turn; ``partitioned``: each in an ordered partition of its own."""
    register(server, place, queue, handlers)
    ((first,),) = server.execute("SELECT coalesce(max(seq), 0)+100000 FROM taskmq_tasks", place)
    whose = " ".join(f"WHEN {number} THEN '{name}'" for number, name in enumerate(handlers))
    at = {"queue": queue, "first": first, "last": first + count, "count": count, "numbers": server.numbers(count)}
    tasks = _TASKS.format(
        **at,
        lane=f"{first}+n" if partitioned else "-h.handler_id",
        code=f"concat('!', {first}+n)" if partitioned else "NULL",
        handler=f"CASE n%{len(handlers)} {whose} END",
    )
    server.execute(tasks, place)
    if partitioned:
        server.execute(_FLOWS.format(**at), place)
        server.execute(_KNOWN.format(**at), place)
    server.execute(_COUNTS.format(**at), place)
    _go_on_behind(server, place, first + count)


def _go_on_behind(server: Server, place: str, seq: int) -> None:
    if isinstance(server, MariadbServer):
        server.execute(f"ALTER TABLE taskmq_seqs AUTO_INCREMENT={seq + 1}", place)
    else:
        server.execute(f"SELECT setval('taskmq_seq', {seq})", place)


def fill_history(server: Server, place: str, queue: str, count: int, delete_at: int) -> None:
    """So many tasks that have ended, each with a key; the first is to be deleted at ``delete_at``, and so on."""
    register(server, place, queue, ("h",))
    at = {"queue": queue, "numbers": server.numbers(count)}
    server.execute(_HISTORY.format(**at, delete_at=delete_at), place)
    keys = {"prefix": "concat('key', n)", "task": "md5(concat('ended', n))", "expires": "NULL"}
    server.execute(_KEYS.format(**at, **keys), place)


def fill_keys(server: Server, place: str, queue: str, count: int, expires_at: int) -> None:
    """So many keys that live by a time of their own, of tasks that are gone."""
    keys = {"prefix": "concat('own', n)", "task": "md5(concat('gone', n))", "expires": f"{expires_at}+n"}
    server.execute(_KEYS.format(queue=queue, numbers=server.numbers(count), **keys), place)
