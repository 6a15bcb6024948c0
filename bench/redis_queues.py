"""Redis: a reserve over a thousand subscribed queues of which ten have work, against one over those ten.

python -m bench.redis_queues [redis|valkey] [QUEUES] [ROUNDS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from bench.common import acknowledge, alternate, fill, message, report, seconds
from bench.place import DEFAULT, Place
from taskmq.message import Delivery
from taskmq.transport.base import Reserve, Store

REACH = "<= 3"


def milliseconds(store: Store, queues: Sequence[str], limit: int) -> float:
    """One reserve; what it brought is settled outside of the time."""
    got: list[Delivery] = []
    took = seconds(lambda: got.extend(store.reserve(Reserve(queues=queues, limit=limit, worker="w")).deliveries))
    acknowledge(store, got)
    assert len(got) == limit
    return took * 1e3


def main(kind: str, count: int, rounds: int) -> None:
    """Print both for a batch of one and of ten."""
    place = Place(kind)  # type: ignore[arg-type]
    store = place.store()
    names = [f"q{i}" for i in range(count)]
    few = names[:: count // 10]
    for batch in (1, 10):
        fill(store, 2 * (rounds + 1) * batch + 10, lambda i: message(queue=few[i % len(few)]))
        sides: list[Callable[[], float]] = [
            lambda batch=batch: milliseconds(store, names, batch),  # type: ignore[misc]
            lambda batch=batch: milliseconds(store, few, batch),  # type: ignore[misc]
        ]
        alternate(sides, 1)  # the first look at a thousand queues is at all of them
        many, ten = alternate(sides, rounds)
        name = f"{kind}: reserve of {batch} over {count:,} queues / over the {len(few)} with work"
        report(name, f"{many:.2f} ms", f"{ten:.2f} ms", many / ten, REACH)


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else DEFAULT,
        int(sys.argv[2]) if len(sys.argv) > 2 else 1000,
        int(sys.argv[3]) if len(sys.argv) > 3 else 200,
    )
