"""A store, or whatever else, that fails for a while: how long to wait before the next try, and what to say about it."""

from __future__ import annotations

import logging
import random
from math import inf

log = logging.getLogger("taskmq.worker")


def pause(failures: int, first: float, longest: float) -> float:
    """Seconds until the next try after so many failures in a row: ``first``, doubled with each, at random by half."""
    return min(longest, first * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)


class Outage:
    """The failures in a row of ``what``. The first is a warning, the others are for debugging, the end is told once.

    ``failures``  how many, since it last was ``over``
    """

    def __init__(self, what: str, first: float, longest: float) -> None:
        self.failures = 0
        self._what = what
        self._first = first
        self._longest = longest

    def failed(self, error: BaseException, detail: str = "", *, at_most: float = inf) -> float:
        """It has failed, once more; answers how many seconds to wait, ``at_most`` so many."""
        self.failures += 1
        seconds = min(at_most, pause(self.failures, self._first, self._longest))
        level = logging.WARNING if self.failures == 1 else logging.DEBUG
        also = f"{detail}, " if detail else ""
        log.log(level, "%s fails (%s); %snext try in %.2f s", self._what, error, also, seconds)
        return seconds

    def over(self) -> None:
        """It has not failed."""
        if self.failures:
            log.info("%s answers again after %d failed tries", self._what, self.failures)
            self.failures = 0


__all__ = ["Outage", "pause"]
