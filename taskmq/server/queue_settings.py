"""A queue's settings as the API shows them, and as the store has them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from taskmq.queue import QueueConfig, Rate

Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class StartRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most ``count`` starts in ``period_ms``, up to ``burst`` at once (default: ``count``)."""

    count: Count
    period_ms: Annotated[int, Meta(ge=1000, le=86_400_000)]
    burst: Count | msgspec.UnsetType = msgspec.UNSET


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What PATCH can change. Defaults are those of the API: ``aging``."""

    order: Literal["aging", "strict"] = "aging"
    aging_step_ms: Annotated[int, Meta(ge=1000, le=3_600_000)] = 30_000
    weight: Count = 1
    paused: bool = False
    max_running: Count | None = None
    start_rate: StartRate | None = None
    on_dead: Literal["continue", "hold"] = "continue"
    lease_ms: Annotated[int, Meta(ge=5000, le=3_600_000)] = 30_000

    def normal(self) -> QueueSettings:
        """With every default filled in, so that equal settings are equal."""
        rate = self.start_rate
        if rate is not None and rate.burst is msgspec.UNSET:
            rate = StartRate(rate.count, rate.period_ms, rate.count)
        return msgspec.structs.replace(self, start_rate=rate)

    @property
    def aging_us(self) -> int:
        """Microseconds that a level of priority is worth; 0: the order is strict."""
        return self.aging_step_ms * 1000 if self.order == "aging" else 0

    def config(self) -> QueueConfig:
        """As the store has it."""
        rate = self.start_rate
        return QueueConfig(
            weight=self.weight,
            order=self.order,
            aging_step=self.aging_step_ms / 1000,
            max_running=self.max_running,
            rate=None
            if rate is None
            else Rate(count=rate.count, per=rate.period_ms / 1000, burst=rate.burst or rate.count),
            paused=self.paused,
            on_dead=self.on_dead,
            lease=self.lease_ms / 1000,
        )
