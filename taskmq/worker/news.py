"""What running tasks have said of their progress and the store does not know yet.

A handler may report ten thousand times a second; only the latest word counts, and the heartbeat takes it along about
once a second. So a report costs a dictionary entry and nothing else.
"""

from __future__ import annotations

from taskmq.message import Delivery
from taskmq.state import Progress


class News:
    """The latest progress of each delivery, by identity: a task's next attempt is another delivery."""

    def __init__(self) -> None:
        self._latest: dict[int, tuple[Delivery, Progress]] = {}  # with the delivery, so that no id is used twice

    def __bool__(self) -> bool:
        return bool(self._latest)

    def tell(self, delivery: Delivery, progress: Progress) -> None:
        """Note a report. From any thread."""
        self._latest[id(delivery)] = (delivery, progress)

    def pending(self) -> dict[int, Progress]:
        """What there is to send, by the id() of its delivery."""
        return {key: progress for key, (_, progress) in self._latest.copy().items()}

    def drop(self, key: int, progress: Progress) -> None:
        """Forget what has been sent or has nobody any more; a newer report stays."""
        latest = self._latest.get(key)
        if latest is not None and latest[1] is progress:
            del self._latest[key]


__all__ = ["News"]
