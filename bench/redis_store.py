"""Redis: what the store alone publishes, claims and settles, by batch size.

    python -m bench.redis_store [redis|valkey] [on|off] [TASKS]

Client and server share this machine, so compare figures of one run only. ``off`` is ``?lua=off``.
"""

from __future__ import annotations

import sys

from bench.common import fill, message, seconds, work_off
from bench.place import DEFAULT, Place

BATCHES = (1, 10, 100)


def main(kind: str, lua: str, tasks: int) -> None:
    """Print both rates for each batch size."""
    place = Place(kind, lua)  # type: ignore[arg-type]
    store = place.store()
    for batch in BATCHES:
        count = tasks if batch > 1 else tasks // 5
        messages = [message() for _ in range(count)]
        fill(store, batch, lambda _: message(), batch)
        took = seconds(lambda: fill(store, count, messages.__getitem__, batch))
        print(f"publish by {batch:<3}         {count / took:9,.0f}/s", flush=True)
        print(f"reserve+settle by {batch:<3}  {work_off(store, count, batch):9,.0f}/s", flush=True)
        place.empty()
    store.close()


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else DEFAULT,
        sys.argv[2] if len(sys.argv) > 2 else "on",
        int(sys.argv[3]) if len(sys.argv) > 3 else 20_000,
    )
