from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.server import dispatch, future, latency, memory, submits
from bench.server.served import Served, served


def main() -> None:
    """Each figure on each store."""
    parser = argparse.ArgumentParser(prog="bench.server")
    parser.add_argument("stores", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--full", action="store_true", help="the sizes of the reaches; minutes")
    parser.add_argument("--only", help="batches, singles, dispatch, latency, memory or future")
    options = parser.parse_args()
    full = options.full
    figures: dict[str, Callable[[Served], None]] = {
        "memory": lambda at: memory.idle_connections(at, 100),
        "latency": lambda at: latency.submit_to_start(at, 200 if full else 50),
        "batches": lambda at: submits.batches(at, 20 if full else 5),
        "singles": lambda at: submits.singles(at, 4000 if full else 800),
        "dispatch": lambda at: dispatch.rates(at, 10.0 if full else 3.0),
        "future": lambda at: future.claims(at, 1_000_000 if full else 50_000, 100_000 if full else 5_000),
    }
    for store in options.stores:
        for name, measure in figures.items():
            if options.only in (None, name):
                with served(store) as at:
                    measure(at)


if __name__ == "__main__":
    main()
