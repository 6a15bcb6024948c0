"""Redis: publishing against celery, dramatiq, rq, huey, arq, saq and taskiq, each as its documentation says.

*hundred*: by a hundred; where a library has nothing for that, one by one, or a hundred coroutines at once.
*single*: one after the other, one caller. *sixteen*: the same from sixteen threads, or sixteen coroutines where that
is the library's way. Arguments of a hundred bytes, one server over TCP on this machine, sides take turns, medians.

    python -m bench.redis_publish [TASKS] [ROUNDS] [PEER…]

Makes an environment for each peer at its first use, see ``bench/peers``. ``none`` as the peer measures ours alone.
"""

from __future__ import annotations

import sys

from bench.common import alternate, figure, report
from bench.peers import OURS, PYTHON, Peer
from bench.place import Place


def rates(place: Place, way: str, tasks: int, rounds: int, peers: list[Peer]) -> dict[str, float]:
    """Tasks a second of each side; ours, which is quicker, publishes more."""
    size = {peer.name: tasks if peer is OURS else max(100, tasks // (10 if way == "hundred" else 2)) for peer in peers}
    figures = alternate([lambda p=p: p.publishing(way, place, size[p.name]) for p in peers], rounds)  # type: ignore[misc]
    return dict(zip((peer.name for peer in peers), figures, strict=True))


def reach(way: str, peer: str, best: str) -> str:
    """What the ratio to a peer should be."""
    if way == "hundred":
        return ">= 10" if peer == best else "-"
    if way == "single":
        return ">= 0.7" if peer == "huey" else ">= 1.1"
    return ">= 1.5" if peer == "huey" else "-"


def main(tasks: int, rounds: int, peers: list[Peer]) -> None:
    """Print ours against each."""
    place = Place()
    print(", ".join(f"{peer.name} {peer.version()}" for peer in peers), flush=True)
    for way in ("hundred", "single", "sixteen"):
        found = rates(place, way, tasks if way == "hundred" else tasks // 5, rounds, [OURS, *peers])
        ours = found.pop("taskmq")
        if way == "hundred":
            figure("enqueue_many by 100", f"{ours:,.0f}/s", ours, ">= 80,000")
        elif not peers:
            print(f"{way} {ours:,.0f}/s")
        best = max(found, key=found.__getitem__, default="")
        for name, theirs in found.items():
            report(f"{way}: ours / {name}", f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, reach(way, name, best))


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 50_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else 3,
        [peer for peer in PYTHON if not sys.argv[3:] or peer.name in sys.argv[3:]],
    )
