"""The options of a worker: checked when it is made, frozen afterwards."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from taskmq.durations import Duration, seconds
from taskmq.errors import InvalidArgument
from taskmq.names import check_int, check_name

POOLS = ("threads", "solo", "asyncio", "processes")
COROUTINES = 100
"""Concurrency of the pool asyncio unless told otherwise."""
MAX_CONCURRENCY = 1000
MAX_PREFETCH = 1000
MAX_GRACE = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a worker was asked to be.

    ``prefetch``  how many to hold beyond the running ones; None: about 20 ms of work
    ``grace``     seconds that running tasks get when the worker stops
    ``lease``     microseconds, for queues that have no lease of their own
    """

    name: str
    queues: tuple[str, ...]
    concurrency: int
    pool: str
    prefetch: int | None
    grace: float
    lease: int


def check_options(
    *,
    name: str | None,
    queues: str | Iterable[str] | None,
    default_queues: Iterable[str],
    concurrency: int | None,
    pool: str,
    prefetch: Any,
    grace: Duration,
    lease: int,
) -> Options:
    """Options as given by the user; raises InvalidArgument, naming the one that is wrong."""
    if pool not in POOLS:
        raise InvalidArgument(f"pool {pool!r} is none of {', '.join(POOLS)}")
    return Options(
        name=_default_name() if name is None else check_name("worker name", name),
        queues=_queues(queues, default_queues),
        concurrency=_concurrency(concurrency, pool),
        pool=pool,
        prefetch=_prefetch(prefetch),
        grace=seconds("grace", grace, 0.0, MAX_GRACE),
        lease=lease,
    )


def _queues(given: str | Iterable[str] | None, default: Iterable[str]) -> tuple[str, ...]:
    if given is None:
        names = sorted(set(default))
        if not names:
            raise InvalidArgument("a worker without queues: no handler is registered, and no queues were named")
        return tuple(names)
    parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    names = [check_name("queue", part) for part in parts]
    if not names:
        raise InvalidArgument("queues is empty: name at least one, or leave it out to serve every handler's queue")
    return tuple(dict.fromkeys(names))


def _concurrency(given: int | None, pool: str) -> int:
    if pool == "solo":
        if given not in (None, 1):
            raise InvalidArgument(f"pool solo runs one task at a time: concurrency cannot be {given!r}")
        return 1
    if given is None:
        cpus = os.cpu_count() or 1
        return {"asyncio": COROUTINES, "processes": cpus}.get(pool, min(32, cpus + 4))
    return check_int("concurrency", given, 1, MAX_CONCURRENCY)


def _prefetch(given: Any) -> int | None:
    if given == "auto" and isinstance(given, str):
        return None
    if type(given) is not int or not 0 <= given <= MAX_PREFETCH:
        raise InvalidArgument(f'prefetch {given!r} is neither "auto" nor an integer from 0 to {MAX_PREFETCH:,}')
    return given


def _default_name() -> str:
    host = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in socket.gethostname())
    return f"{host[:80]}-{os.getpid()}-{secrets.token_hex(3)}"


__all__ = ["Options", "check_options"]
