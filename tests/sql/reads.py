"""How many rows a server reads for what a store does, from its own counters: what a plan costs, without a clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from taskmq.testing.mariadb_server import MariadbServer
from taskmq.testing.sql_fill import Server
from taskmq.transport.base import Store
from taskmq.transport.registry import open_store
from tests.sql.sides import until

_LARGE = "('taskmq_tasks', 'taskmq_flows', 'taskmq_history', 'taskmq_keys')"


def rows_read(server: Server, place: str, work: Callable[[Store], object]) -> dict[str, int]:
    """Rows that were read of each index, and of each table as a whole, while a store of its own did this work."""
    if isinstance(server, MariadbServer):
        server.execute("SET GLOBAL userstat=1")
        began = ""
    else:
        ((began,),) = server.execute("SELECT clock_timestamp()::text")
    before = _so_far(server, place)
    with closing(open_store(server.url(place, pool="1"))) as store:
        work(store)
    if not isinstance(server, MariadbServer):  # a session hands in its counters when it ends
        mine = f"SELECT 1 FROM pg_stat_activity WHERE application_name='taskmq' AND backend_start>'{began}'"
        until(lambda: not server.execute(mine), "the store's sessions do not end")
    after = _so_far(server, place)
    if isinstance(server, MariadbServer):
        server.execute("SET GLOBAL userstat=0")
    return {name: read - before.get(name, 0) for name, read in after.items()}


def _so_far(server: Server, place: str) -> dict[str, int]:
    if isinstance(server, MariadbServer):
        # What was read of an index counts in its table, too; beyond all of them it was read as a whole.
        rows = server.execute(
            "SELECT concat(table_name, '.', index_name), rows_read FROM information_schema.index_statistics "
            f"WHERE table_schema='{place}' "
            f"AND table_name IN {_LARGE} UNION ALL "
            "SELECT concat(t.table_name, ' (whole)'), t.rows_read - (SELECT coalesce(sum(i.rows_read), 0) "
            "FROM information_schema.index_statistics i WHERE i.table_schema=t.table_schema "
            "AND i.table_name=t.table_name) FROM information_schema.table_statistics t "
            f"WHERE t.table_schema='{place}' AND t.table_name IN {_LARGE}"
        )
    else:
        rows = server.execute(
            f"SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname='{place}' "
            f"AND relname IN {_LARGE} UNION ALL "
            f"SELECT relname||' (whole)', seq_tup_read FROM pg_stat_user_tables WHERE schemaname='{place}' "
            f"AND relname IN {_LARGE}"
        )
    return {str(name): int(read or 0) for name, read in rows}
