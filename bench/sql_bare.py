"""One fetcher of ``sql_rates``: so many rounds of settling what is held and claiming as many again.

Prints a line when it holds its first batch, waits for one on its input, then prints when it began and when it ended.

``transport``  through the store
``bare``       the statements that the store sends, in a loop over the driver: on PostgreSQL the three of the short way,
               with what the claim brought as the parameters of the next success; on MariaDB those of one recorded
               round, with the numbers of the tasks replaced
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.common import claim
from bench.sql_place import connect
from taskmq.outcome import Ack
from taskmq.transport.base import Reserve, Settle, Settlement, Store
from taskmq.transport.registry import open_store

Round = Callable[[], None]
TASK = re.compile(r"\b1\d{12}\b")
FIRST_SEQ = 10**12
"""Of MariaDB's tasks, so that their numbers are found in a statement."""


def through(url: str, batch: int) -> Round:
    """Rounds through the transport."""
    store = open_store(url)
    held = claim(store, batch)
    params = Reserve(queues=["q"], limit=batch, worker="w")

    def one_round() -> None:
        nonlocal held
        settle = Settle(items=[Settlement(delivery, Ack()) for delivery in held])
        held = store.settle_and_reserve(settle, params)[1].deliveries

    return one_round


def bare_postgresql(url: str, batch: int) -> Round:
    """The short way's statements."""
    from taskmq.transport.sql.postgresql import hot
    from taskmq.transport.sql.postgresql.connection import BEGIN
    from taskmq.transport.sql.postgresql.exchange import Sent
    from taskmq.transport.sql.postgresql.plain import CLAIM_PLAIN, SUCCEED_PLAIN

    store: Any = open_store(url)
    engine = store._engine
    run, now = engine._connect().exchanger.run, engine.clock.now
    held = claim(store, batch)
    items = [{"seq": task.token, "id": task.id, "epoch": task.epoch} for task in held]
    queue = {"namespace": "default", "names": ["q"]}
    wanted = {"namespace": "default", "name": "q", "limit": batch, "worker": "w", "lease": 30_000_000, "batch": 1}

    def one_round() -> None:
        nonlocal items
        moment = now()
        rows = msgspec.json.encode(items).decode()
        claimed = Sent(CLAIM_PLAIN, {**wanted, "now": moment})
        run(
            [
                Sent(BEGIN, ()),
                Sent(hot.LOCK, queue),
                Sent(SUCCEED_PLAIN, ("default", ["q"], rows, 3, moment, moment, 1 << 40)),
                claimed,
                Sent("COMMIT", ()),
            ]
        )
        items = [{"seq": row[5], "id": row[6], "epoch": row[13]} for row in claimed.rows]

    return one_round


def _recorded(store: Store, batch: int) -> tuple[list[list[str]], list[int], list[int]]:
    """The packets of one round, the tasks it settled, and those it claimed."""
    from taskmq.transport.sql.mysql.packet import Sent
    from taskmq.transport.sql.mysql.session import MysqlSession

    packets: list[list[str]] = []
    send = MysqlSession._exchange

    def record(session: MysqlSession, pending: Sequence[Sent]) -> None:
        packets.append([sent.text for sent in pending])
        send(session, pending)

    held = claim(store, batch)
    MysqlSession._exchange = record  # type: ignore[method-assign, assignment]
    settle = Settle(items=[Settlement(delivery, Ack()) for delivery in held])
    more = store.settle_and_reserve(settle, Reserve(queues=["q"], limit=batch, worker="w"))[1].deliveries
    MysqlSession._exchange = send  # type: ignore[method-assign]
    return packets, [task.token for task in held], [task.token for task in more]


def bare_mariadb(url: str, batch: int) -> Round:
    """A recorded round's statements."""
    store = open_store(url)
    packets, settled, claimed = _recorded(store, batch)
    cursor = connect(url).cursor()
    held = claimed

    def one_round() -> None:
        nonlocal held
        numbers = dict(zip(map(str, settled), map(str, held), strict=True))
        for packet in packets:
            text = TASK.sub(lambda match: numbers.get(match[0], match[0]), ";".join(packet))
            cursor.execute(text)
            for statement in packet:
                rows = cursor.fetchall() if cursor.description else ()
                if "ix_taskmq_tasks_line" in statement:
                    held = [row[2] for row in rows]
                    numbers.update(zip(map(str, claimed), map(str, held), strict=True))
                cursor.nextset()

    return one_round


def main(program: str, url: str, rounds: int, batch: int) -> None:
    """Work off, and tell the time it took."""
    bare = bare_mariadb if url.startswith("mariadb") else bare_postgresql
    one_round = through(url, batch) if program == "transport" else bare(url, batch)
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    for _ in range(rounds):
        one_round()
    print(begun, time.monotonic(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
