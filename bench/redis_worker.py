"""Redis: workers with a no-op handler, one process each: ours against seven Python libraries, BullMQ and Sidekiq.

Ours with its default settings (threads pool), theirs with what is quick for them: eight threads, or a hundred places
where handlers are coroutines. Tasks are published first; the rate is taken between the handler calls of the tenth part
and of the last, which two tasks note in a file. One server over TCP on this machine, sides take turns, medians.

    python -m bench.redis_worker [TASKS] [ROUNDS] [PEER…]

Makes an environment for each peer at its first use, see ``bench/peers``. The bare loop that our worker is compared
with, and its processor time: ``python -m bench.worker_noop redis``.
"""

from __future__ import annotations

import sys

from bench.common import alternate, report
from bench.peers import OTHERS, OURS, PYTHON, Peer, missing
from bench.place import Place

FAST = ("bullmq", "sidekiq")
REACHES = {"dramatiq": ">= 20", "bullmq": ">= 1.3", "sidekiq": ">= 5"}


def main(tasks: int, rounds: int, peers: list[Peer]) -> None:
    """Print ours against each, the best Python library among them."""
    place = Place()
    for peer in peers:
        if (lack := missing(peer)) is not None:
            print(f"{peer.name} is left out: {lack}")
    peers = [peer for peer in peers if missing(peer) is None]
    print(", ".join(f"{peer.name} {peer.version()}" for peer in peers), flush=True)
    size = {peer.name: tasks // 10 for peer in PYTHON} | dict.fromkeys(FAST, tasks // 2) | {OURS.name: tasks}
    sides = [OURS, *peers]
    figures = alternate([lambda p=p: p.working(place, size[p.name]) for p in sides], rounds)  # type: ignore[misc]
    found = dict(zip((peer.name for peer in sides), figures, strict=True))
    ours = found.pop(OURS.name)
    best = max((name for name in found if name not in FAST), key=found.__getitem__, default="")
    for name, theirs in found.items():
        reach = REACHES.get(name, ">= 10" if name == best else "-")
        report(f"worker, no-op: ours / {name}", f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, reach)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else 3,
        [peer for peer in (*PYTHON, *OTHERS) if not sys.argv[3:] or peer.name in sys.argv[3:]],
    )
