"""PostgreSQL and MariaDB: a claim among many tasks, a publish against the bare insert, rates, limits, how fast news is.

The server is one of this machine's, started for the figures, with durable settings.

python -m bench.sql_store [postgresql|postgresql-new|mariadb] [TASKS]
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench.common import acknowledge, alternate, claim, figure, fill, message, report, seconds
from taskmq.outcome import Ack
from taskmq.queue import QueueConfig
from taskmq.testing.mariadb_server import mariadb_server
from taskmq.testing.sql_servers import postgres_server
from taskmq.transport.base import Publish, Reserve, Settle, Settlement, Store, Wait
from taskmq.transport.registry import open_store

SERVERS = ("postgresql", "postgresql-new", "mariadb")


def url_of(server: str, place: str) -> str:
    """A new place on the server."""
    if server == "mariadb":
        return mariadb_server().url(mariadb_server().place(place))
    running = postgres_server(server)
    return running.url(running.place(place))


def _one_claim(store: Store, n: int) -> float:
    """The time of one claim; what it took is settled, and published anew so that the line keeps its length."""
    held: list[Any] = []
    took = seconds(lambda: held.extend(claim(store, n)))
    acknowledge(store, held)
    fill(store, n, lambda i: message())
    return took


def claim_scale(server: str, tasks: int) -> None:
    """Claim p50 at 1,000 ready, at ``tasks`` ready, and with ``tasks`` more in the future."""
    for order in ("strict", "aging"):
        stores = []
        for name, ready, future in (("few", 1000, 0), ("many", tasks, 0), ("late", 1000, tasks)):
            store = open_store(url_of(server, f"{name}-{order}"))
            store.configure_queues({"q": QueueConfig(order=order)})
            fill(store, ready, lambda i: message())
            fill(store, future, lambda i: message(delay=3600 * 24 * 365 + i))
            stores.append(store)
        for n in (1, 10):
            sides = [lambda s=store, n=n: _one_claim(s, n) for store in stores]
            alternate(sides, 20)
            base, large, late = alternate(sides, 200)
            for what, value in ((f"{tasks:,} ready / 1,000", large), (f"{tasks:,} in the future / none", late)):
                shown = (f"{value * 1e3:.3f} ms", f"{base * 1e3:.3f} ms")
                report(f"{server}, {order}, claim of {n}, p50: {what}", *shown, value / base, "<= 1.5")
        for store in stores:
            store.close()


def publishes(server: str) -> None:
    """Publish p50 of one and of 100, and the batch against the bare statement over the driver."""
    url = url_of(server, "publishes")
    store = open_store(url)
    fill(store, 1, lambda i: message())

    def ours() -> float:
        batch = [message() for _ in range(100)]
        return seconds(lambda: store.publish(Publish(messages=batch)))

    def one() -> float:
        batch = [message()]
        return seconds(lambda: store.publish(Publish(messages=batch)))

    bare = _bare_insert(server, url)
    alternate([ours, one, lambda: next(bare)], 10)
    many, single, plain = alternate([ours, one, lambda: next(bare)], 100)
    figure(f"{server}, publish of 1, p50", f"{single * 1e3:.2f} ms", single * 1e3, "<= 5")
    rates = (f"{100 / many:,.0f}/s", f"{100 / plain:,.0f}/s")
    report(f"{server}, publish of 100 / bare insert of 100", *rates, plain / many, ">= 0.6")
    store.close()


def _bare_insert(server: str, url: str) -> Iterator[float]:
    """Times of a multi-row INSERT of the usual columns, in a transaction of its own."""
    from bench.common import BODY

    columns = (
        "seq, id, queue_id, state, lane, priority, available_at, max_attempts, created_at, handler, handler_id, body"
    )
    row = f"({', '.join(['%s'] * 12)})"
    statement = f"INSERT INTO taskmq_tasks({columns}) VALUES {', '.join([row] * 100)}"
    connection: Any
    if server == "mariadb":
        from taskmq.transport.sql.mysql.connection import connect
        from taskmq.transport.sql.mysql.settings import Settings

        connection = connect(Settings(url)).cursor()
    else:
        import psycopg

        from taskmq.transport.sql.postgresql.settings import Settings as PgSettings

        connection = psycopg.connect(**PgSettings(url).parameters, autocommit=True)  # type: ignore[arg-type]
    seq = 1 << 50
    while True:
        values: list[Any] = []
        for _ in range(100):
            seq += 1
            values += [seq, f"{seq:032x}", 999, 1, 1 << 55, 0, 1, 3, 1, "h", 999, BODY.decode()]
        yield seconds(lambda values=values: connection.execute(statement, values))  # type: ignore[misc]


def work(server: str, tasks: int = 20_000) -> None:
    """Claimed and settled tasks a second with one fetcher, one exchange for both, and with four."""
    for fetchers in (1, 4):
        for batch in (10, 50):
            url = url_of(server, f"work-{fetchers}-{batch}")
            stores = [open_store(url) for _ in range(fetchers)]
            fill(stores[0], tasks, lambda i: message())
            threads = [threading.Thread(target=_fetch, args=(store, batch)) for store in stores]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rate = tasks / (time.perf_counter() - began)
            figure(f"{server}, {fetchers} fetchers, batch {batch}", f"{rate:,.0f} tasks/s", rate, ">= 1000")
            for store in stores:
                store.close()


def _fetch(store: Store, batch: int) -> None:
    params = Reserve(queues=["q"], limit=batch, worker="w")
    held = store.reserve(params).deliveries
    while held:
        settle = Settle(items=[Settlement(delivery, Ack()) for delivery in held])
        held = store.settle_and_reserve(settle, params)[1].deliveries


def limits(server: str, seconds_long: float = 5.0) -> None:
    """Starts a second under ``max_running=8`` with eight claimers. That it is exact, the conformance suite says."""
    url = url_of(server, "limits")
    stores = [open_store(url) for _ in range(8)]
    stores[0].configure_queues({"q": QueueConfig(max_running=8)}, overwrite=True)
    fill(stores[0], 20_000, lambda i: message())
    starts: list[int] = []
    stop = time.monotonic() + seconds_long

    def claimer(store: Store) -> None:
        while time.monotonic() < stop:
            held = claim(store, 4)
            acknowledge(store, held)
            starts.append(len(held))

    threads = [threading.Thread(target=claimer, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(starts) / seconds_long
    figure(f"{server}, max_running=8, starts", f"{rate:,.0f}/s", rate, ">= 2000")
    for store in stores:
        store.close()


def news(server: str) -> None:
    """From a publish in one store to the end of another's wait, as between processes."""
    url = url_of(server, "news")
    one, other = open_store(url), open_store(url)
    fill(one, 1, lambda i: message())
    acknowledge(other, claim(other, 1))
    other.wait(Wait(queues=["q"], timeout=0.5))
    late = []
    for _ in range(50):
        ended: list[float] = []

        def waiting(ended: list[float] = ended) -> None:
            other.wait(Wait(queues=["q"], timeout=10))
            ended.append(time.perf_counter())

        thread = threading.Thread(target=waiting)
        thread.start()
        time.sleep(0.1)
        began = time.perf_counter()
        one.publish(Publish(messages=[message()]))
        thread.join()
        late.append(ended[0] - began)
        acknowledge(other, claim(other, 1))
    p50 = statistics.median(late) * 1e3
    reach = "<= 50" if server == "mariadb" else "<= 5"
    figure(f"{server}, publish to the end of a wait, p50", f"{p50:.1f} ms", p50, reach)
    one.close()
    other.close()


def main(servers: tuple[str, ...], tasks: int) -> None:
    """Print the figures of these servers."""
    for server in servers:
        publishes(server)
        news(server)
        work(server)
        limits(server)
        claim_scale(server, tasks)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word in SERVERS]
    numbers = [int(word.replace("_", "")) for word in sys.argv[1:] if word not in SERVERS]
    main(tuple(words) or SERVERS, numbers[0] if numbers else 1_000_000)
