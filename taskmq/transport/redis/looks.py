"""How a claim looks at the queues of a cluster: by the script that would claim, or by less where less is enough.

The script (``lua/reserve.lua``, "peek") brings what is due into its line and says what a claim of n would take. It
costs a server 30 to 60 µs a queue, and without scripts on the servers several round trips each. A queue that knows no
partition and no limit, has no gate and nothing due gives simply the first of its line, and that two commands tell in
8 µs, all queues in one round trip. Whether it is such a queue stands in its state, read with the line: if it is not any
more, the script is asked after all. Nothing is decided by it but who is claimed from; the claim itself looks again.

Whether something is due, the server's clock says: it is read once a second, and in between this process's clock tells
how much later it is. A millisecond of error only means that the script is asked a millisecond sooner or later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from taskmq.clock import Clock
from taskmq.transport.redis.exchange import Command, packed_ahead
from taskmq.transport.redis.keys import Keys
from taskmq.transport.redis.nodes import Bundle, Wish, slot_of
from taskmq.transport.redis.peeked import Peeked

CLOCK_LASTS = 1_000_000
"""Microseconds for which a reading of a server's clock is good."""


_NEVER = (0, 0)
KNOWN = 10_000
"""So many looks at simple queues are kept as they travel."""


class Look(NamedTuple):
    """What is asked about one queue. ``lines``: how many it has, 0 when a script is asked."""

    queue: str
    wish: Wish
    lines: int


class Looks:
    """The looks of one store object; it remembers which queues are simple, and how far their clocks are off."""

    def __init__(self, at: Callable[[str], Keys], clock: Clock | None) -> None:
        self._at = at
        self._clock = clock
        self._lines: dict[str, int] = {}
        self._known: dict[tuple[str, int, int, bool], Look] = {}
        self._ahead: dict[str, tuple[int, int]] = {}
        """Queue → how far its server's clock is ahead of this process's, and when that was read."""

    def simple(self, queue: str, n: int) -> Look | None:
        """What to ask if the queue was simple when it was last looked at."""
        lines = self._lines.get(queue, 0)
        if not lines:
            return None
        late = self._clock is None and _now() - self._ahead.get(queue, _NEVER)[1] > CLOCK_LASTS
        look = self._known.get((queue, n, lines, late))
        if look is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            look = self._known[queue, n, lines, late] = self._look_at_lines(queue, n, lines, with_clock=late)
        return look

    def _look_at_lines(self, queue: str, n: int, lines: int, *, with_clock: bool) -> Look:
        keys = self._at(queue)
        in_line = [keys.of_spec("line", spec, queue) for spec in range(1, lines + 1)]
        commands: list[Command] = [
            ["MGET", *(keys.of_queue(what, queue) for what in ("conf", "state", "served"))],
            *(("ZRANGE", key, 0, n - 1, "WITHSCORES") for key in in_line),
            *([("TIME",)] if with_clock else ()),
        ]
        return Look(queue, Bundle(slot_of(keys.declared), commands, packed_ahead(commands)), lines)

    def of_script(self, queue: str, answer: Sequence[bytes]) -> list[Peeked]:
        """What the script said; nothing if it was not done with what is due."""
        if len(answer) == 2:
            return []
        _, _, served, weight, bands, followers, parks, lines = answer
        self._lines[queue] = int(lines)
        return [Peeked(queue, served, int(weight), bands, followers, parks=parks == b"1")]

    def of_lines(self, look: Look, answers: Sequence[Any], n: int) -> Peeked | None:
        """What the commands said; None: the queue is not simple now, ask the script."""
        conf, state, service = answers[0]
        lines = answers[1 : 1 + look.lines]
        if len(answers) > 1 + look.lines:
            seconds, micros = answers[-1]
            self._ahead[look.queue] = (int(seconds) * 1_000_000 + int(micros) - _now(), _now())
        weight, aging, gated = _settings(conf or b"")
        if gated or not state or not self._is_simple(look, state):
            self._lines.pop(look.queue, None)
            return None
        if len(lines) == 1:
            members = lines[0][::2]
        else:
            heads = (zip(map(float, line[1::2]), line[::2], strict=True) for line in lines)
            members = [member for _, member in islice(merge(*heads), n)]
        bands = b"0" * len(members) if aging else b"".join([member[:1] for member in members])
        served = service.partition(b",")[0] if service else b"0"
        return Peeked(look.queue, served, weight, bands, b"", parks=False)

    def _is_simple(self, look: Look, state: bytes) -> bool:
        lines, due = _standing(state)
        if lines != look.lines:
            return False
        return not due or due > (_now() + self._ahead[look.queue][0] if self._clock is None else self._clock.now())


@lru_cache(maxsize=4096)
def _settings(conf: bytes) -> tuple[int, bool, bool]:
    """A queue's weight, whether it ages, and whether it has a gate."""
    if not conf:
        return 1, False, False
    paused, weight, step, running, _, _, _, rate, _ = conf.partition(b"\n")[0].split(b",", 8)
    return int(weight or 1), int(step or 0) > 0, paused == b"1" or bool(running or rate)


@lru_cache(maxsize=4096)
def _standing(state: bytes) -> tuple[int, int]:
    """How many lines a queue has, 0 if it knows partitions or limits; and when something falls due, or 0."""
    _, _, _, _, flows, limited, _, due, specs = state.split(b",")
    return len(specs) if flows == limited == b"0" else 0, int(due or 0)


def _now() -> int:
    """Microseconds by this process's own clock."""
    return time.monotonic_ns() // 1000
