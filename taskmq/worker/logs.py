"""Logging of a process that is a worker, or the child of one, and nothing else. A library must not touch the root."""

from __future__ import annotations

import logging
import time


def log_to_stderr(level: int | str) -> None:
    """Log to stderr, in UTC, unless the app has set up logging itself."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])


__all__ = ["log_to_stderr"]
