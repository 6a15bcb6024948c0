"""PostgreSQL and MariaDB: claim and settle with four fetchers, through the transport against its own statements bare.

Each fetcher has a process of its own, a store or a connection of its own, and works off its share of one queue: settle
what it holds and claim as many again, in one transaction. Bare means the statements that the transport sends, in the
same exchanges, without its policy and rows: see ``sql_bare``.

    python -m bench.sql_rates [postgresql|postgresql-new|mariadb] [TASKS]
"""

from __future__ import annotations

import subprocess
import sys

from bench.common import fill, message, report
from bench.sql_bare import FIRST_SEQ
from bench.sql_place import connect, run, settle_down, url_of
from taskmq.transport.registry import open_store

FETCHERS = 4
ROUNDS = 3


def rate(url: str, program: str, tasks: int, batch: int) -> float:
    """Tasks a second of four processes, between the start of the first and the end of the last."""
    store = open_store(url)
    if url.startswith("mariadb"):
        with connect(url).cursor() as cursor:
            cursor.execute(f"ALTER TABLE taskmq_seqs AUTO_INCREMENT={FIRST_SEQ}")
    fill(store, tasks + 2 * FETCHERS * batch, lambda i: message())
    settle_down(url)
    words = [sys.executable, "-m", "bench.sql_bare", program, url, str(tasks // FETCHERS // batch), str(batch)]
    fetchers = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(FETCHERS)
    ]
    for fetcher in fetchers:
        assert fetcher.stdout is not None
        fetcher.stdout.readline()  # it holds its first batch
    for fetcher in fetchers:
        assert fetcher.stdin is not None
        fetcher.stdin.write("go\n")
        fetcher.stdin.flush()
    spans = [tuple(map(float, fetcher.communicate()[0].split())) for fetcher in fetchers]
    store.close()
    return tasks / (max(end for _, end in spans) - min(begin for begin, _ in spans))


def measure(server: str, tasks: int) -> None:
    """Print the ratio for batches of ten and of fifty."""
    for batch in (10, 50):
        rates: dict[str, list[float]] = {"transport": [], "bare": []}
        for number in range(ROUNDS):
            for program, figures in rates.items():
                figures.append(rate(url_of(server, f"{program}-{batch}-{number}"), program, tasks, batch))
        ours, bare = (sorted(figures)[ROUNDS // 2] for figures in rates.values())
        name = f"{server}: claim + settle by {batch}, {FETCHERS} fetchers / bare"
        report(name, f"{ours:,.0f}/s", f"{bare:,.0f}/s", ours / bare, ">= 0.7")


if __name__ == "__main__":
    run(measure, 20_000)
