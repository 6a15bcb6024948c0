"""Settings of an interpreter that is a worker, or the child of one, and nothing else."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SWITCH_INTERVAL = 0.001
"""``sys.setswitchinterval`` of such a process: +19 to +27 % for short CPU tasks with one handler thread, and the fetch
thread gets the interpreter sooner. Never set when embedded: the process is not ours."""


@contextmanager
def switching(interval: float) -> Iterator[None]:
    """Have threads take turns so often while inside."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


__all__ = ["SWITCH_INTERVAL", "switching"]
